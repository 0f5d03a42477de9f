import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import type { Log } from '#base/log.ts';
import { type Estate, sendEstate } from './estate.ts';
import { createLine, type Line } from './line.ts';
import type { Message } from './protocol.ts';
import { isTrusted, openProcess, peerOf } from './system.ts';

/**
 * A data path's keepers: usually one, two during a handover, none after its keeper died. Then it goes on serving, and looks
 * for a new one.
 */
export interface Keepers {
  /** With the one that started this process. */
  begin(line: Line): void;
  /** To each. */
  tell(message: Message, descriptors?: readonly number[]): void;
  report(text: string): void;
  /** Gives everything to a further keeper. */
  introduce(path: string): void;
  welcomed(line: Line): void;
  /** There is no keeper at the moment. */
  readonly isAlone: boolean;
  close(): void;
}

interface KeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly signal: AbortSignal;
  /** Where a keeper is found. */
  readonly path: () => string;
  /** Undefined: nothing is served, and no keeper is looked for. */
  readonly estate: () => Estate | undefined;
  readonly attend: (line: Line, closed: (why: string) => void) => void;
  /** The keeper is gone, and nothing is served. */
  readonly deserted: () => void;
}

const answerMs = 5_000;
const pause = { shortest: 50, longest: 500 } as const;
/** For one that has nothing to serve: whoever ended its keeper may be about to start another. */
const idleMs = 60_000;

export function createReconnecting(options: KeepersOptions): Keepers {
  const { clock, log, version, signal, path, estate, attend, deserted } = options;
  const lines = new Set<Line>();
  const unanswered = new Map<Line, Disposable>();
  let isLooking = false;
  let isOver = false;
  let said = '';

  function join(line: Line): void {
    lines.add(line);
    attend(line, (why) => lost(line, why));
  }

  function lost(line: Line, why: string): void {
    lines.delete(line);
    unanswered.get(line)?.[Symbol.dispose]();
    unanswered.delete(line);
    if (isOver || lines.size > 0) return;
    if (estate() === undefined) deserted();
    else {
      log.warn('the keeper is gone', { why });
      void look();
    }
  }

  /** Until somebody takes us in. */
  async function look(): Promise<void> {
    if (isLooking) return;
    isLooking = true;
    let busyAt = clock.elapsed();
    for (
      let ms: number = pause.shortest;
      !isOver && !signal.aborted && lines.size === 0;
      ms = Math.min(pause.longest, ms + 10)
    ) {
      await clock.sleep(ms, signal).catch(() => undefined);
      if ((estate()?.mounts.size ?? 0) > 0) busyAt = clock.elapsed();
      if (clock.elapsed() - busyAt > idleMs) return deserted();
      if (!isOver && lines.size === 0) introduce(path());
    }
    isLooking = false;
  }

  function introduce(at: string): void {
    const everything = estate();
    const line = everything === undefined ? undefined : connected(at);
    if (everything === undefined || line === undefined) return;
    const self = openProcess(process.pid);
    line.send({ kind: 'hello', role: 'data path', pid: process.pid, version }, [self]);
    closeSync(self);
    sendEstate(line, everything, 'everything');
    unanswered.set(
      line,
      clock.after(answerMs, () => line.close()),
    );
    join(line);
  }

  function connected(at: string): Line | undefined {
    try {
      const fd = connectTo(at);
      if (isTrusted(peerOf(fd))) return createLine(fd, clock);
      closeSync(fd);
    } catch {
      // Nobody there, as yet.
    }
    return undefined;
  }

  const tell = (message: Message, descriptors: readonly number[] = []): void => {
    for (const line of lines) line.send(message, descriptors);
  };

  return {
    introduce,
    tell,
    get isAlone() {
      return lines.size === 0;
    },
    begin: (line) => {
      const self = openProcess(process.pid);
      line.send({ kind: 'hello', role: 'data path', pid: process.pid, version }, [self]);
      closeSync(self);
      join(line);
    },
    report: (text) => {
      said = text;
      tell({ kind: 'report', text });
    },
    welcomed: (line) => {
      unanswered.get(line)?.[Symbol.dispose]();
      unanswered.delete(line);
      if (said !== '') line.send({ kind: 'report', text: said });
    },
    close: () => {
      isOver = true;
      for (const line of lines) line.close();
    },
  };
}
