import { opcode } from '#wire/fuse/abi.ts';
import type { Device } from '#wire/fuse/device.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { header } from '#wire/fuse/message.ts';
import type { Session } from '#wire/fuse/session.ts';
import { maxCoincidentalCrashes } from './journal/crash-suspects.ts';
import type { UnfinishedRequest } from './journal/requests.ts';
import { readJournaledWrite, writeReply } from './journaled-write.ts';
import type { ServedMountOptions } from './served-mount.ts';

/** Continues the requests that a predecessor read and did not finish. */
export interface UnfinishedReplay {
  /** Answered writes come first, then all others in their order. */
  start(): void;
  /** Gives up a suspect whose requester was interrupted, if it has not been started. */
  giveUpInterrupted(place: number): void;
  /** The places of suspects that have not been started. */
  notStarted(): Iterable<number>;
}

interface UnfinishedReplayOptions
  extends Pick<
    ServedMountOptions,
    'unfinished' | 'requests' | 'clock' | 'poisonRequests' | 'requestAges' | 'onUnreleased' | 'onAnsweredWrite'
  > {
  readonly session: Session;
  readonly device: Pick<Device, 'write'>;
  readonly free: (place: number) => void;
}

/**
 * A request that crashes its data path would crash each successor, and its requester could not even be killed. If this
 * many data paths have died, most of them while no other request was being started, that is no coincidence.
 */
const maxCrashes = 10;

export function createUnfinishedReplay(options: UnfinishedReplayOptions): UnfinishedReplay {
  const { unfinished, requests, clock, poisonRequests, requestAges, session, device, free } = options;
  /** Suspects of this mount that have not been started. */
  const suspects = new Map<number, UnfinishedRequest>();

  function restore({ place, message }: UnfinishedRequest): void {
    const written = readJournaledWrite(place, message);
    options.onAnsweredWrite(written);
    // The predecessor may have been killed just before answering. The kernel refuses a second answer.
    device.write(writeReply(message, written.data.length));
  }

  function resume(request: UnfinishedRequest): void {
    if (request.phase === 'done') {
      // The kernel refuses a second answer.
      device.write(requests.keptAnswer(request.place));
      free(request.place);
    } else if (request.crashCount >= maxCrashes)
      giveUp(request, new Error(`${maxCrashes} data paths have died over it`));
    else if (request.crashCount < maxCoincidentalCrashes) startRequest(request);
    else if (request.isInterrupted) giveUp(request, new Errno('EINTR'));
    else holdSuspect(request);
  }

  function startRequest(
    request: UnfinishedRequest,
    start = (): void => session.handle(request.place, request.message, request),
  ): void {
    requestAges?.set(request.place, request.ageMs);
    start();
    requestAges?.delete(request.place);
  }

  function holdSuspect(request: UnfinishedRequest): void {
    const run = session.defer(request.place, request.message, request);
    suspects.set(request.place, request);
    const heldAt = clock.elapsed();
    poisonRequests.add(request.place, () => {
      suspects.delete(request.place);
      startRequest({ ...request, ageMs: request.ageMs + clock.elapsed() - heldAt }, run);
    });
  }

  function giveUp(request: UnfinishedRequest, cause: Error): void {
    suspects.delete(request.place);
    if (header.opcode(request.message) === opcode.release)
      options.onUnreleased?.(header.node(request.message), request.place);
    session.fail(request.place, request.message, cause);
  }

  return {
    start: () => {
      const [answeredWrites, others] = [unfinished.filter(isBehind), unfinished.filter((one) => !isBehind(one))];
      for (const one of answeredWrites.toSorted((a, b) => a.order - b.order)) restore(one);
      for (const one of others) resume(one);
    },
    giveUpInterrupted: (place) => {
      const suspected = suspects.get(place);
      if (suspected !== undefined) giveUp(suspected, new Errno('EINTR'));
    },
    notStarted: () => suspects.keys(),
  };
}

const isBehind = ({ phase }: UnfinishedRequest): boolean => phase === 'behind';
