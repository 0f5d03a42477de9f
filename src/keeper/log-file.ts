import { fstatSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import type { Facts, Log } from '#base/log.ts';

const longest = 1024 * 1024;

/**
 * Writes one JSON object per line into a file that is truncated when full. Not a pipe: its reader may stop reading, and
 * a write would then block everything.
 */
export function createKeeperLog(file: string | undefined, clock: Clock): { readonly log: Log; readonly fd: number } {
  const fd = file === undefined ? process.stderr.fd : openSync(file, 'a', 0o600);

  function write(level: string, message: string, facts: Facts): void {
    const line = { time: new Date(clock.now()).toISOString(), level, message, ...facts };
    try {
      if (file !== undefined && fstatSync(fd).size > longest) ftruncateSync(fd);
      writeSync(fd, `${JSON.stringify(line, plain)}\n`);
    } catch {
      // A keeper continues without its log.
    }
  }

  const logWith = (known: Facts): Log => ({
    debug: () => undefined,
    info: (message, facts) => write('info', message, { ...known, ...facts }),
    warn: (message, facts) => write('warn', message, { ...known, ...facts }),
    error: (message, facts) => write('error', message, { ...known, ...facts }),
    with: (facts) => logWith({ ...known, ...facts }),
  });
  return { log: logWith({}), fd };
}

const plain = (_: string, value: unknown): unknown => (value instanceof Error ? value.message : value);
