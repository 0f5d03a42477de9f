import { fstatSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import type { Facts, Log } from '#base/log.ts';

const maxLogBytes = 1024 * 1024;

/**
 * Writes one JSON object per line into a file that is truncated when full. Not a pipe: its reader may stop reading, and
 * a write would then block everything.
 */
export function createKeeperLog(file: string | undefined, clock: Clock): { readonly log: Log; readonly fd: number } {
  const fd = file === undefined ? process.stderr.fd : openSync(file, 'a', 0o600);

  function write(level: string, message: string, facts: Facts): void {
    const line = { time: new Date(clock.now()).toISOString(), level, message, ...facts };
    try {
      if (file !== undefined && fstatSync(fd).size > maxLogBytes) ftruncateSync(fd);
      writeSync(fd, `${JSON.stringify(line, errorAsMessage)}\n`);
    } catch {
      // A keeper continues without its log.
    }
  }

  const logWith = (boundFacts: Facts): Log => ({
    debug: () => undefined,
    info: (message, facts) => write('info', message, { ...boundFacts, ...facts }),
    warn: (message, facts) => write('warn', message, { ...boundFacts, ...facts }),
    error: (message, facts) => write('error', message, { ...boundFacts, ...facts }),
    with: (facts) => logWith({ ...boundFacts, ...facts }),
  });
  return { log: logWith({}), fd };
}

const errorAsMessage = (_: string, value: unknown): unknown => (value instanceof Error ? value.message : value);
