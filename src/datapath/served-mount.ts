import type { Clock } from '#base/clock.ts';
import { opcode } from '#wire/fuse/abi.ts';
import { type Device, openDevice, type Slot } from '#wire/fuse/device.ts';
import type { InitOptions, InitResult } from '#wire/fuse/init.ts';
import type { Operations } from '#wire/fuse/operations.ts';
import { createSession, type RequestStore } from '#wire/fuse/session.ts';
import type { Requests, UnfinishedRequest, UnplacedRequest } from './journal/requests.ts';
import { createLateReads } from './late-reads.ts';
import type { PoisonRequests } from './poison-requests.ts';
import type { AcknowledgedWrite } from './ports.ts';
import { createUnfinishedReplay } from './unfinished-replay.ts';

export interface ServedMountOptions {
  /** This process's own copy of /dev/fuse. It is closed at the end, also if the mount cannot be served. */
  readonly fd: number;
  /** The mount's index in the journal. */
  readonly mount: number;
  readonly requests: Requests;
  readonly operations: Partial<Operations>;
  readonly initOptions: InitOptions;
  /** Mounts of this process that wait for memory, to be woken when some is freed. */
  readonly pausedMounts: Set<() => void>;
  /** A predecessor's unfinished requests, in their order. */
  readonly unfinished: readonly UnfinishedRequest[];
  readonly clock: Clock;
  /** Shared by all mounts of this process. */
  readonly poisonRequests: PoisonRequests;
  /** By place: the age of an unfinished request. Set only while that request starts. */
  readonly requestAges?: Map<number, number>;
  /** Called for a RELEASE that is given up: the close must still be counted. */
  readonly onUnreleased?: (node: number, place: number) => void;
  /** Called for each WRITE that the predecessor answered, before any other request starts. */
  readonly onAnsweredWrite: (written: AcknowledgedWrite) => void;
  /** No memory to read requests: buffered writes must be committed. */
  readonly onFull?: () => void;
  readonly onInit: (initResult: InitResult) => void;
  readonly onFault: (operation: string, cause: unknown) => void;
  readonly onEnd: (code: string) => void;
}

export interface ServedMount extends Disposable {
  /** Sends a notification to the kernel. */
  notify(bytes: Uint8Array): void;
  /**
   * Like `notify`, from another thread, for notifications that may block until a request is answered. False: the kernel
   * refused it.
   */
  notifyFromThread(bytes: Uint8Array): Promise<boolean>;
  /** An answered WRITE is on the server's disk: frees its memory. */
  freeWrite(place: number): void;
  /** Stops reading; resolves when everything read is answered. */
  stop(): Promise<void>;
}

/** Requests without an answer need no line, so they run even if there is none. */
const unjournaledOpcodes: ReadonlySet<number> = new Set([opcode.interrupt, opcode.forget, opcode.batchForget]);
const noLine = -1;

/** Serves one mount: reads requests into the journal, dispatches them, and continues where a predecessor stopped. */
export async function serveMount(options: ServedMountOptions): Promise<ServedMount> {
  const { fd, mount, requests, pausedMounts, clock, poisonRequests } = options;
  let isStopping = false;
  /** The lines of this mount belong, or will soon belong, to other mounts: requests in progress must not touch them. */
  let isClosed = false;
  /** Resolves `stop` when everything is answered. */
  let resolveIdle: (() => void) | undefined;
  /** A request that was read but found no line. */
  let unplaced: UnplacedRequest | undefined = requests.findUnplaced(mount);
  /** The slot of a request without a line. */
  let unjournaledSlot: Slot | undefined;

  /** Wakes waiting mounts later: the caller's reply may not be written yet. */
  const free = (place: number): void => {
    if (isClosed) return;
    requests.free(place);
    if (pausedMounts.size > 0) setImmediate(() => wakeAll(pausedMounts));
  };

  const handleAnswered = (place: number): void => {
    poisonRequests.remove(place);
    if (session.pending === 0) resolveIdle?.();
  };

  const finish = (place: number): void => {
    if (isClosed) return;
    if (place === noLine) {
      if (unjournaledSlot !== undefined) requests.empty(unjournaledSlot);
      unjournaledSlot = undefined;
      return;
    }
    free(place);
    handleAnswered(place);
  };

  const store: RequestStore = {
    reply: (place, bytes) => {
      if (isClosed) return;
      requests.keepAnswer(place, bytes);
      device.write(bytes);
      if (requests.isBehind(place)) handleAnswered(place);
      else finish(place);
    },
    finished: finish,
    interrupted: (place) => {
      if (isClosed) return;
      requests.markInterrupted(place);
      if (poisonRequests.isWaiting(place)) replay.giveUpInterrupted(place);
    },
  };
  const session = createSession({ ...options, store });

  function takeRequest(slot: Slot, length: number, share?: number): void {
    if (unjournaledOpcodes.has(slot.view.getUint32(4, true))) {
      unjournaledSlot = slot;
      session.handle(noLine, { buffer: slot.buffer, view: slot.view, end: length });
      return;
    }
    const taken = requests.take(mount, slot, length, share);
    if (taken !== undefined) session.handle(taken.place, taken.message);
    else {
      unplaced = { slot, length };
      lateReads.schedule();
      waitForRoom();
    }
  }

  function nextSlot(): Slot | undefined {
    if (isStopping || unplaced !== undefined) return undefined;
    const slot = requests.arm(mount);
    if (slot === undefined) waitForRoom();
    return slot;
  }

  function waitForRoom(): void {
    pausedMounts.add(wake);
    options.onFull?.();
  }

  function resumeReading(share?: number): void {
    pausedMounts.delete(wake);
    // The request stays in its slot for the successor.
    if (isStopping) return;
    const waitingRequest = unplaced;
    unplaced = undefined;
    if (waitingRequest !== undefined) takeRequest(waitingRequest.slot, waitingRequest.length, share);
    if (unplaced !== undefined) return;
    if (share === undefined) lateReads.reset();
    device.resume();
  }

  const wake = (): void => resumeReading();
  const lateReads = createLateReads(clock, (share) => {
    if (unplaced !== undefined) resumeReading(share);
  });

  function close(): void {
    isClosed = true;
    pausedMounts.delete(wake);
    lateReads[Symbol.dispose]();
    device[Symbol.dispose]();
    for (const place of [...replay.notStarted(), ...session.end()]) poisonRequests.remove(place);
    resolveIdle?.();
  }

  const device: Device = openDevice({
    fd,
    nextSlot,
    onRequest: takeRequest,
    onEnd: options.onEnd,
    onRejected: (cause) => options.onFault('an answer', cause),
  });
  const replay = createUnfinishedReplay({ ...options, session, device, free });
  using cleanup = new DisposableStack();
  cleanup.defer(close);
  replay.start();
  // There may be room already; if not, a commit can free some now.
  if (unplaced !== undefined) wake();

  cleanup.move();
  return {
    notify: (bytes) => void device.write(bytes),
    notifyFromThread: (bytes) => device.writeInThread(bytes),
    freeWrite: free,
    stop: async () => {
      isStopping = true;
      device.pause();
      const { promise, resolve } = Promise.withResolvers<void>();
      resolveIdle = resolve;
      if (session.pending > 0) await promise;
    },
    [Symbol.dispose]: close,
  };
}

/** Iterate over a copy: a mount that finds nothing waits again. */
function wakeAll(pausedMounts: ReadonlySet<() => void>): void {
  for (const wake of Array.from(pausedMounts)) wake();
}
