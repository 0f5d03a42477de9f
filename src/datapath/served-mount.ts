import type { Clock } from '#base/clock.ts';
import { opcode } from '#wire/fuse/abi.ts';
import { type Device, openDevice, type Slot } from '#wire/fuse/device.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Agreement, Wishes } from '#wire/fuse/init.ts';
import { header } from '#wire/fuse/message.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { createSession, type Desk } from '#wire/fuse/session.ts';
import { maxByChance } from './journal/crash-suspects.ts';
import type { Requests, UnfinishedRequest, UnplacedRequest } from './journal/requests.ts';
import { readJournaledWrite, writeReply } from './journaled-write.ts';
import type { PoisonRequests } from './poison-requests.ts';
import type { AcknowledgedWrite } from './ports.ts';

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
  readonly left: readonly UnfinishedRequest[];
  readonly clock: Clock;
  /** Of all mounts of this process. */
  readonly poisonRequests: PoisonRequests;
  /** By place: how long ago one of those was read. It is there while that one is begun. */
  readonly ages?: Map<number, number>;
  /** A file was closed, and nobody will work on it: it is to be counted. */
  readonly onUnreleased?: (node: number, place: number) => void;
  /** Data of a WRITE that was answered before; all of them come before anything else is done. */
  readonly onBehind: (written: AcknowledgedWrite) => void;
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
 * have ended over it, most of them while no other was being begun, it is not by chance.
 */
const maxCrashes = 10;

/** What is done at once, without an answer, needs no line: so it is done also where there is none. */
const unjournaledOpcodes: ReadonlySet<number> = new Set([opcode.interrupt, opcode.forget, opcode.batchForget]);
const noLine = -1;

/**
 * A mount that has its share of the lines still reads a request now and then, less and less often: the kernel gives out first who was
 * interrupted, but only to who reads. That may bring it to three quarters of all lines.
 */
const lateReads = { firstMs: 100, mostMs: 5_000, share: 3 } as const;

/** One mount: reads its requests into the journal, has them answered, and goes on where a predecessor was stopped. */
export async function serveMount(options: ServedMountOptions): Promise<ServedMount> {
  const { fd, mount, requests, paused, clock, poisonRequests, ages } = options;
  let isStopping = false;
  /** Its lines are, or are about to be, somebody else's: what is still worked on must not touch them. */
  let isOver = false;
  /** Whoever waits for everything to be answered. */
  let idle: (() => void) | undefined;
  let lateReadMs: number = lateReads.firstMs;
  let nextLateRead: Disposable | undefined;
  /** Read, and without a line: there was no room. */
  let unplaced: UnplacedRequest | undefined = requests.unplaced(mount);
  /** What is done without a line lies there. */
  let at: Slot | undefined;

  /** Later: whoever freed it is in the middle of something, and the answer to it may not be written yet. */
  const free = (place: number): void => {
    if (isOver) return;
    requests.free(place);
    if (paused.size > 0) setImmediate(() => wakeAll(paused));
  };

  const answered = (place: number): void => {
    poisonRequests.done(place);
    if (session.pending === 0) idle?.();
  };

  const finished = (place: number): void => {
    if (isOver) return;
    if (place === noLine) {
      if (at !== undefined) requests.empty(at);
      at = undefined;
      return;
    }
    free(place);
    answered(place);
  };

  const desk: Desk = {
    answer: (place, bytes) => {
      if (isOver) return;
      requests.keepAnswer(place, bytes);
      device.write(bytes);
      if (requests.isBehind(place)) answered(place);
      else finished(place);
    },
    finished,
    interrupted: (place) => {
      if (isOver) return;
      requests.interrupted(place);
      if (poisonRequests.has(place)) giveUp(suspects.get(place), new Errno('EINTR'));
    },
  };
  const session = createSession({ ...options, desk });
  /** Of this mount, as long as they may not have been begun. */
  const suspects = new Map<number, UnfinishedRequest>();

  function take(slot: Slot, length: number, share?: number): void {
    if (unjournaledOpcodes.has(slot.view.getUint32(4, true))) {
      at = slot;
      session.take(noLine, { buffer: slot.buffer, view: slot.view, end: length });
      return;
    }
    const taken = requests.take(mount, slot, length, share);
    if (taken !== undefined) session.take(taken.place, taken.message);
    else {
      unplaced = { slot, length };
      nextLateRead ??= clock.after(lateReadMs, readOverQuota);
      waitForRoom();
    }
  }

  function next(): Slot | undefined {
    if (isStopping || unplaced !== undefined) return undefined;
    const slot = requests.arm(mount);
    if (slot === undefined) waitForRoom();
    return slot;
  }

  function waitForRoom(): void {
    paused.add(wake);
    options.onFull?.();
  }

  function resumeReading(share?: number): void {
    paused.delete(wake);
    // It stays where it is, for the next one.
    if (isStopping) return;
    const waiting = unplaced;
    unplaced = undefined;
    if (waiting !== undefined) take(waiting.slot, waiting.length, share);
    if (unplaced !== undefined) return;
    if (share === undefined) lateReadMs = lateReads.firstMs;
    device.resume();
  }

  const wake = (): void => resumeReading();

  function readOverQuota(): void {
    nextLateRead = undefined;
    lateReadMs = Math.min(lateReadMs * 2, lateReads.mostMs);
    if (unplaced !== undefined) resumeReading(lateReads.share);
  }

  function close(): void {
    isOver = true;
    paused.delete(wake);
    nextLateRead?.[Symbol.dispose]();
    device[Symbol.dispose]();
    for (const place of [...suspects.keys(), ...session.end()]) poisonRequests.done(place);
    idle?.();
  }

  const device: Device = openDevice({
    ...{ fd, next, onRequest: take, onEnd: options.onEnd },
    onRefused: (cause) => options.onFault('an answer', cause),
  });
  using failing = new DisposableStack();
  failing.defer(close);
  const [behind, others] = [options.left.filter(isBehind), options.left.filter((one) => !isBehind(one))];
  for (const one of behind.toSorted((a, b) => a.order - b.order)) restore(one);
  for (const one of others) resume(one);
  // There may be room for it already; if not, there is something to hurry now.
  if (unplaced !== undefined) wake();

  function restore({ place, message }: UnfinishedRequest): void {
    const written = readJournaledWrite(place, message);
    options.onBehind(written);
    // The predecessor may have been killed just before it. Refused where the kernel has it already.
    device.write(writeReply(message, written.data.length));
  }

  function resume(left: UnfinishedRequest): void {
    if (left.phase === 'done') {
      // Refused where the kernel has it already.
      device.write(requests.keptAnswer(left.place));
      free(left.place);
    } else if (left.outlived >= maxCrashes) giveUp(left, new Error(`${maxCrashes} data paths have ended over it`));
    else if (left.outlived < maxByChance) begin(left);
    else if (left.isInterrupted) giveUp(left, new Errno('EINTR'));
    else suspect(left);
  }

  function begin(left: UnfinishedRequest, start = (): void => session.take(left.place, left.message, left)): void {
    ages?.set(left.place, left.ageMs);
    start();
    ages?.delete(left.place);
  }

  function suspect(left: UnfinishedRequest): void {
    const run = session.hold(left.place, left.message, left);
    suspects.set(left.place, left);
    const heldAt = clock.elapsed();
    poisonRequests.add(left.place, () => {
      suspects.delete(left.place);
      begin({ ...left, ageMs: left.ageMs + clock.elapsed() - heldAt }, run);
    });
  }

  function giveUp(left: UnfinishedRequest | undefined, why: Error): void {
    if (left === undefined) return;
    suspects.delete(left.place);
    if (header.opcode(left.message) === opcode.release) options.onUnreleased?.(header.node(left.message), left.place);
    session.giveUp(left.place, left.message, why);
  }

  failing.move();
  return {
    notify: (bytes) => void device.write(bytes),
    notifyApart: (bytes) => device.writeApart(bytes),
    committed: free,
    stop: async () => {
      isStopping = true;
      device.pause();
      const { promise, resolve } = Promise.withResolvers<void>();
      idle = resolve;
      if (session.pending > 0) await promise;
    },
    [Symbol.dispose]: close,
  };
}

const isBehind = ({ phase }: UnfinishedRequest): boolean => phase === 'behind';

/** Not the set itself: who finds nothing waits again. */
function wakeAll(paused: ReadonlySet<() => void>): void {
  for (const wake of [...paused]) wake();
}
