import { opcode } from '#wire/fuse/abi.ts';
import type { Device } from '#wire/fuse/device.ts';
import { Errno } from '#wire/fuse/errno.ts';
import { header } from '#wire/fuse/message.ts';
import type { Session } from '#wire/fuse/session.ts';
import { maxByChance } from './journal/crash-suspects.ts';
import type { UnfinishedRequest } from './journal/requests.ts';
import { readJournaledWrite, writeReply } from './journaled-write.ts';
import type { ServedMountOptions } from './served-mount.ts';

/** Continues the requests that a predecessor read and did not finish. */
export interface UnfinishedReplay {
  /** Answered writes come first, then all others in their order. */
  start(): void;
  /** The requester of a suspect was interrupted: if the request has not been started, it is given up. */
  interrupted(place: number): void;
  /** The places of suspects that have not been started. */
  notStarted(): Iterable<number>;
}

interface UnfinishedReplayOptions
  extends Pick<
    ServedMountOptions,
    'left' | 'requests' | 'clock' | 'poisonRequests' | 'ages' | 'onUnreleased' | 'onBehind'
  > {
  readonly session: Session;
  readonly device: Pick<Device, 'write'>;
  readonly free: (place: number) => void;
}

/**
 * A request that crashes its data path would crash each successor, and its requester could not even be killed. If this
 * many have died over it, most of them while no other request was being started, it is no coincidence.
 */
const maxCrashes = 10;

export function createUnfinishedReplay(options: UnfinishedReplayOptions): UnfinishedReplay {
  const { left, requests, clock, poisonRequests, ages, session, device, free } = options;
  /** Suspects of this mount that have not been started. */
  const suspects = new Map<number, UnfinishedRequest>();

  function restore({ place, message }: UnfinishedRequest): void {
    const written = readJournaledWrite(place, message);
    options.onBehind(written);
    // The predecessor may have been killed just before answering. The kernel refuses a second answer.
    device.write(writeReply(message, written.data.length));
  }

  function resume(left: UnfinishedRequest): void {
    if (left.phase === 'done') {
      // The kernel refuses a second answer.
      device.write(requests.keptAnswer(left.place));
      free(left.place);
    } else if (left.crashCount >= maxCrashes) giveUp(left, new Error(`${maxCrashes} data paths have died over it`));
    else if (left.crashCount < maxByChance) begin(left);
    else if (left.isInterrupted) giveUp(left, new Errno('EINTR'));
    else suspect(left);
  }

  function begin(left: UnfinishedRequest, start = (): void => session.handle(left.place, left.message, left)): void {
    ages?.set(left.place, left.ageMs);
    start();
    ages?.delete(left.place);
  }

  function suspect(left: UnfinishedRequest): void {
    const run = session.defer(left.place, left.message, left);
    suspects.set(left.place, left);
    const heldAt = clock.elapsed();
    poisonRequests.add(left.place, () => {
      suspects.delete(left.place);
      begin({ ...left, ageMs: left.ageMs + clock.elapsed() - heldAt }, run);
    });
  }

  function giveUp(left: UnfinishedRequest, why: Error): void {
    suspects.delete(left.place);
    if (header.opcode(left.message) === opcode.release) options.onUnreleased?.(header.node(left.message), left.place);
    session.fail(left.place, left.message, why);
  }

  return {
    start: () => {
      const [behind, others] = [left.filter(isBehind), left.filter((one) => !isBehind(one))];
      for (const one of behind.toSorted((a, b) => a.order - b.order)) restore(one);
      for (const one of others) resume(one);
    },
    interrupted: (place) => {
      const suspected = suspects.get(place);
      if (suspected !== undefined) giveUp(suspected, new Errno('EINTR'));
    },
    notStarted: () => suspects.keys(),
  };
}

const isBehind = ({ phase }: UnfinishedRequest): boolean => phase === 'behind';
