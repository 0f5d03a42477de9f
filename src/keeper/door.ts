import { closeSync, lstatSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { accepted, listenAt, shutDown } from '#base/linux/descriptors.ts';
import type { Log } from '#base/log.ts';
import { createLine, type Line } from './line.ts';
import { endsWithProcess, isTrusted, peerOf } from './system.ts';

/** Each keeps a thread: whoever starts a keeper gives it a few more (UV_THREADPOOL_SIZE). */
const mostLines = 12;
export const threadsOfKeeper = 24;

/** Throws unless the folder is there, or can be made, for nobody but this user. */
export function ownFolder(path: string): void {
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const { mode, uid } = lstatSync(path);
  if (!lstatSync(path).isDirectory() || uid !== process.getuid?.() || (mode & 0o077) !== 0)
    throw new Error(`${path} must be a folder that belongs to this user and that nobody else may enter`);
}

interface DoorOptions {
  readonly path: string;
  readonly clock: Clock;
  readonly log: Log;
  readonly connected: (line: Line) => void;
}

/** Lets those in who may. Throws when it cannot listen. */
export function openDoor({ path, clock, log, connected }: DoorOptions): Disposable {
  ownFolder(dirname(path));
  const listening = listenAt(path);
  const registered = endsWithProcess(listening);
  const lines = new Set<Line>();
  let isOpen = true;

  function enter(fd: number): void {
    for (const line of lines) if (!line.isOpen) lines.delete(line);
    const peer = peerOf(fd);
    if (isTrusted(peer) && lines.size < mostLines) {
      const line = createLine(fd, clock);
      lines.add(line);
      connected(line);
    } else {
      log.warn('somebody was turned away', { ...peer, lines: lines.size });
      closeSync(fd);
    }
  }

  async function listen(): Promise<void> {
    for (let fd = await accepted(listening); fd !== undefined; fd = await accepted(listening)) enter(fd);
    registered[Symbol.dispose]();
    closeSync(listening);
  }
  void listen();

  return {
    [Symbol.dispose]: () => {
      // Its number may be another's by the second time.
      if (isOpen) shutDown(listening);
      isOpen = false;
    },
  };
}
