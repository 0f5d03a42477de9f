import { type Device, openDevice, type Slot } from '#wire/fuse/device.ts';
import type { Agreement, Wishes } from '#wire/fuse/init.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { createSession, type Desk } from '#wire/fuse/session.ts';
import type { Left, Requests, Stuck } from './journal/requests.ts';
import type { Written } from './ports.ts';
import { answerTo, writtenBy } from './written.ts';

export interface ServedMountOptions {
  /** /dev/fuse, this process's own copy: it is closed at the end, also if the mount cannot be served. */
  readonly fd: number;
  /** Which mount of the journal. */
  readonly mount: number;
  readonly requests: Requests;
  readonly operations: Partial<Operations>;
  readonly wishes: Wishes;
  /** Mounts that wait for memory, of this process: whoever frees some wakes them. */
  readonly paused: Set<() => void>;
  /** What a predecessor left, in the order it came. */
  readonly left: readonly Left[];
  /** Data of a WRITE that was answered before; all of them come before anything else is done. */
  readonly onBehind: (written: Written) => void;
  /** Nothing can be read for lack of memory: data that are behind must get to the disk. */
  readonly onFull?: () => void;
  readonly onAgreed: (agreement: Agreement) => void;
  readonly onFault: (operation: string, cause: unknown) => void;
  readonly onEnd: (code: string) => void;
}

export interface ServedMount extends Disposable {
  /** Tells the kernel something. */
  notify(bytes: Uint8Array): void;
  /** The same by another thread, for what may wait for an answer of ours. False: the kernel could do nothing with it. */
  notifyApart(bytes: Uint8Array): Promise<boolean>;
  /** A WRITE that was answered is on the server's disk: its memory is free. */
  committed(place: number): void;
  /** Reads nothing more; resolves when everything that was read is answered. */
  stop(): Promise<void>;
}

/**
 * A request that ends whoever works on it would do so for ever, and whoever waits for it could not even be killed. If so many
 * have ended over it, each after so long at most, it is not by chance.
 */
const mostOutlived = 10;
const eachMs = 15_000;
const isDeadly = ({ outlived, ageMs }: Left): boolean => outlived >= mostOutlived && ageMs <= outlived * eachMs;

/** One mount: reads its requests into the journal, has them answered, and goes on where a predecessor was stopped. */
export async function serveMount(options: ServedMountOptions): Promise<ServedMount> {
  const { fd, mount, requests, paused } = options;
  let isStopping = false;
  const idle = Promise.withResolvers<void>();
  /** Read, and without a line: there was no room. */
  let stuck: Stuck | undefined = requests.stuck(mount);
  let armed = stuck?.slot;

  /** Later: whoever freed it is in the middle of something, and the answer to it may not be written yet. */
  const free = (place: number): void => {
    requests.free(place);
    if (paused.size > 0) setImmediate(() => wakeAll(paused));
  };

  const finished = (place: number): void => {
    free(place);
    if (session.pending === 0) idle.resolve();
  };

  const desk: Desk = {
    answer: (place, bytes) => {
      requests.keepAnswer(place, bytes);
      device.write(bytes);
      if (!requests.isBehind(place)) finished(place);
      else if (session.pending === 0) idle.resolve();
    },
    finished,
    interrupted: requests.interrupted,
  };
  const session = createSession({ ...options, desk });

  function take(slot: Slot, length: number): void {
    const taken = requests.take(mount, slot, length);
    if (taken === undefined) stuck = { slot, length };
    else session.take(taken.place, taken.message);
  }

  function next(): Slot | undefined {
    if (isStopping) return undefined;
    if (stuck === undefined) {
      if (armed === undefined || !requests.isArmed(mount, armed)) armed = requests.arm(mount);
      if (armed !== undefined) return armed;
    }
    paused.add(wake);
    options.onFull?.();
    return undefined;
  }

  function wake(): void {
    paused.delete(wake);
    // It stays where it is, for the next one.
    if (isStopping) return;
    const waiting = stuck;
    stuck = undefined;
    if (waiting !== undefined) take(waiting.slot, waiting.length);
    device.resume();
  }

  function close(): void {
    paused.delete(wake);
    device[Symbol.dispose]();
  }

  const device: Device = openDevice({ fd, next, onRequest: take, onEnd: options.onEnd });
  using failing = new DisposableStack();
  failing.defer(close);
  const [behind, others] = [options.left.filter(isBehind), options.left.filter((one) => !isBehind(one))];
  for (const one of behind.toSorted((a, b) => a.order - b.order)) restore(one);
  for (const one of others) resume(one);
  // There may be room for it already; if not, there is something to hurry now.
  if (stuck !== undefined) wake();

  function restore({ place, message }: Left): void {
    const written = writtenBy(place, message);
    options.onBehind(written);
    // The predecessor may have been killed just before it. Refused where the kernel has it already.
    device.write(answerTo(message, written.data.length));
  }

  function resume(left: Left): void {
    if (left.phase === 'done') {
      // Refused where the kernel has it already.
      device.write(requests.keptAnswer(left.place));
      free(left.place);
    } else if (isDeadly(left))
      session.giveUp(left.place, left.message, new Error(`${mostOutlived} data paths have ended over it`));
    else session.take(left.place, left.message, left.isInterrupted);
  }

  failing.move();
  return {
    notify: (bytes) => void device.write(bytes),
    notifyApart: (bytes) => device.writeApart(bytes),
    committed: free,
    stop: async () => {
      isStopping = true;
      device.pause();
      if (session.pending > 0) await idle.promise;
    },
    [Symbol.dispose]: close,
  };
}

const isBehind = ({ phase }: Left): boolean => phase === 'behind';

/** Not the set itself: who finds nothing waits again. */
function wakeAll(paused: ReadonlySet<() => void>): void {
  for (const wake of [...paused]) wake();
}
