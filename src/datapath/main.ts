/**
 * The data path's program. A keeper starts it twice: one serves, the other is the standby. It gets its orders over the
 * inherited socket.
 */

import process from 'node:process';
import { systemClock } from '#base/clock.ts';
import { endProcess } from '#base/linux/end-process.ts';
import { hardenProcess } from '#keeper/harden-process.ts';
import { joinKeeper } from '#keeper/join-keeper.ts';
import { createKeeperLog } from '#keeper/log-file.ts';
import { type Program, startProgram } from './program.ts';

/** The version of the Stowage that started the keeper. */
const version = process.env['STOWAGE_VERSION'] ?? 'unknown';
const clock = systemClock();
const log = createKeeperLog(undefined, clock).log.with({ dataPath: process.pid });
const stopping = new AbortController();
hardenProcess('stowage data path', -900);

let program: Promise<Program> | undefined;

/** Exit on any fault: the keeper sees the exit, and another process continues from the journal. */
function fail(cause: unknown): void {
  log.error('the data path exits because of a bug', {
    cause: cause instanceof Error ? (cause.stack ?? cause.message) : String(cause),
  });
  endProcess(1);
}
process.on('uncaughtException', fail);
process.on('unhandledRejection', fail);

const link = joinKeeper({
  clock,
  log,
  version,
  signal: stopping.signal,
  handlers: {
    serve: (order) => {
      program = startProgram(order, {
        clock,
        log,
        holder: link,
        report: link.report,
        reportEnded: link.reportEnded,
        reportUnserved: link.reportUnserved,
        signal: stopping.signal,
      });
      program.then(() => link.ready(), fail);
    },
    add: (mount) => {
      program
        ?.then((running) => running.add(mount))
        .catch((cause: unknown) =>
          link.report(`failed to serve a mount: ${cause instanceof Error ? cause.message : 'unknown'}`),
        );
    },
    remove: (id) => {
      program?.then((running) => running.remove(id)).catch(fail);
    },
    flush: async (id, ms) => {
      const running = await program;
      return (await running?.flush(id, ms)) ?? 0;
    },
    stop: async () => {
      const running = await program;
      await running?.stop();
    },
    exit: () => endProcess(0),
  },
});
