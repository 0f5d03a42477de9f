import { spawn } from 'node:child_process';
import type { Run } from './component.ts';

/** Long enough for the largest build on a slow machine. */
const runTimeoutMs = 30 * 60_000;
/** The maximum length of a failed program's output in an error. */
const maxOutputChars = 4_000;

/** Runs programs, which end when the signal is aborted. Returns the standard output; an error contains both outputs. */
export function runner(signal: AbortSignal): Run {
  return async (file, args, options = {}) => {
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
    const limit = AbortSignal.any([signal, AbortSignal.timeout(runTimeoutMs)]);
    const child = spawn(file, args, { ...options, env, signal: limit, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    let bothOutputs = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      bothOutputs += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      bothOutputs += text;
    });
    const { promise, resolve, reject } = Promise.withResolvers<number | string>();
    child.on('error', reject);
    child.on('close', (code, by) => resolve(code ?? by ?? 'unknown'));
    const status = await promise;
    if (status === 0) return output;
    throw new Error(`${file} ${args.join(' ')} ended with ${status}:\n${bothOutputs.slice(-maxOutputChars).trimEnd()}`);
  };
}
