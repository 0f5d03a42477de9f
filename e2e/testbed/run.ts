import { spawn } from 'node:child_process';
import type { Run } from './component.ts';

/** Long enough for the largest build on a slow machine. */
const deadline = 30 * 60_000;
/** The maximum length of a failed program's output in an error. */
const maxOutputLength = 4_000;

/** Runs programs, which end when the signal is aborted. Returns the standard output; an error contains both outputs. */
export function runner(signal: AbortSignal): Run {
  return async (file, args, options = {}) => {
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
    const limited = AbortSignal.any([signal, AbortSignal.timeout(deadline)]);
    const child = spawn(file, args, { ...options, env, signal: limited, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    let said = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      said += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
    const { promise, resolve, reject } = Promise.withResolvers<number | string>();
    child.on('error', reject);
    child.on('close', (code, by) => resolve(code ?? by ?? 'unknown'));
    const status = await promise;
    if (status === 0) return output;
    throw new Error(`${file} ${args.join(' ')} ended with ${status}:\n${said.slice(-maxOutputLength).trimEnd()}`);
  };
}
