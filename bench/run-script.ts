import { spawn } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';

const deadlineMs = 10 * 60_000;

/** Runs a script in a separate Node process, and parses its output as JSON. */
export async function runScript<T>(script: URL, args: readonly string[], signal: AbortSignal): Promise<T> {
  const child = spawn(process.execPath, [fileURLToPath(script), ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    signal: AbortSignal.any([signal, AbortSignal.timeout(deadlineMs)]),
    killSignal: 'SIGKILL',
  });
  const { promise: ended, resolve, reject } = Promise.withResolvers<number | null>();
  child.once('close', resolve);
  child.once('error', reject);
  const [output, code] = await Promise.all([text(child.stdout), ended]);
  if (code !== 0) throw new Error(`${script.pathname} ended with status ${code}`);
  return JSON.parse(output) as T;
}
