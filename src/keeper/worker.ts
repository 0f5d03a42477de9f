import type { Clock } from '#base/clock.ts';
import type { Connection } from './connection.ts';
import type { MessageOf } from './protocol.ts';

/** A handle on another process, started here or transferred by another keeper. */
export interface ProcessHandle {
  readonly connection: Connection;
  /** Kills it. Resolves when none of its threads can run its program again. */
  end(): Promise<void>;
  /** It was killed but hangs in the kernel, so its connection stays open. */
  isDying(): boolean;
  /** It runs where it cannot be killed from here, and may only exit by itself. Default: false. */
  isOutOfReach?(): boolean;
  /** Instead of `end`: gives the process up to another keeper. */
  forget(): void;
}

export interface ProcessInfo {
  readonly pid: number;
  readonly version: string;
}

/** A process that is, was or will be the serving data path. */
export interface Worker {
  readonly program: string;
  readonly connection: Connection;
  /** Undefined while it is loading, before its hello. */
  readonly info: ProcessInfo | undefined;
  readonly isReady: boolean;
  /** False: started by another keeper. */
  readonly isOwn: boolean;
  /** The keeper has told it to end, and it no longer counts as serving. */
  readonly isEnding: boolean;
  /** Each resolves to false if the worker is lost first. */
  readonly greeted: Promise<boolean>;
  readonly ready: Promise<boolean>;
  readonly stopped: Promise<boolean>;
  end(): Promise<void>;
  isDying(): boolean;
  isOutOfReach(): boolean;
}

export interface WorkerEvents {
  /** Any of the promises above has resolved. */
  changed(worker: Worker): void;
  stopped(worker: Worker): void;
  received(
    worker: Worker,
    message: MessageOf<'holding' | 'letGo' | 'ended' | 'flushed' | 'report'>,
    descriptors: number[],
  ): void;
  /** The connection is closed. The process may be alive: end it before another one gets what it had. */
  lost(worker: Worker, why: string): void;
}

const accepts = ['hello', 'ready', 'stopped', 'holding', 'letGo', 'ended', 'flushed', 'report'] as const;
const helloTimeoutMs = 30_000;

interface WorkerOptions {
  readonly child: ProcessHandle;
  readonly program: string;
  readonly clock: Clock;
  readonly events: WorkerEvents;
  /** For a data path that already serves. */
  readonly serving?: ProcessInfo;
}

export function createWorker({ child, program, clock, events, serving }: WorkerOptions): Worker {
  const { connection } = child;
  const [greeted, ready, stopped] = [createFlag(), createFlag(), createFlag()];
  let info = serving;
  let exited: Promise<void> | undefined;
  if (serving !== undefined) for (const flag of [greeted, ready]) flag.set(true);
  const helloTimer = clock.after(helloTimeoutMs, () => {
    if (info === undefined) void worker.end();
  });

  function handleMessage(message: MessageOf<(typeof accepts)[number]>, descriptors: number[]): void {
    switch (message.kind) {
      case 'hello':
        info = { pid: message.pid, version: message.version };
        greeted.set(true);
        events.changed(worker);
        break;
      case 'ready':
        ready.set(true);
        events.changed(worker);
        break;
      case 'stopped':
        stopped.set(true);
        events.stopped(worker);
        break;
      default:
        events.received(worker, message, descriptors);
    }
  }

  const worker: Worker = {
    isOwn: serving === undefined,
    program,
    connection,
    greeted: greeted.promise,
    ready: ready.promise,
    stopped: stopped.promise,
    get info() {
      return info;
    },
    get isReady() {
      return ready.isSet;
    },
    get isEnding() {
      return exited !== undefined;
    },
    isDying: child.isDying,
    isOutOfReach: () => child.isOutOfReach?.() === true,
    end: () => {
      exited ??= child.end().finally(() => connection.close());
      return exited;
    },
  };
  connection.handle({
    accepts,
    message: handleMessage,
    closed: (why) => {
      helloTimer[Symbol.dispose]();
      for (const flag of [greeted, ready, stopped]) flag.set(false);
      events.lost(worker, why);
    },
  });
  return worker;
}

function createFlag(): { readonly promise: Promise<boolean>; readonly isSet: boolean; set(value: boolean): void } {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  let isSet = false;
  return {
    promise,
    get isSet() {
      return isSet;
    },
    set: (value) => {
      isSet ||= value;
      resolve(value);
    },
  };
}
