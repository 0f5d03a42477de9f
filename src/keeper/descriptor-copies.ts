import { addMounts, type Collector, createCollector, type HeldDescriptors, holdSockets } from './held-descriptors.ts';
import type { MessageOf } from './protocol.ts';

/**
 * A second holder of the keeper's descriptors. The kernel ends a FUSE connection when its last descriptor is closed.
 * With these copies the keeper and its data path may be killed together: applications block until the next keeper gets
 * everything back. For the same reason, nothing that the keeper dropped stays here.
 */
export interface DescriptorCopies extends Disposable {
  /** Undefined: nothing was received yet, or it was dropped. */
  readonly held: HeldDescriptors | undefined;
  readonly mounts: readonly string[];
  take(message: CopyMessage, descriptors: number[]): void;
  /** Holds nothing until the next full transfer. */
  drop(): void;
}

export const copyMessages = ['everything', 'add', 'holding', 'remove', 'letGo'] as const;
export type CopyMessage = MessageOf<(typeof copyMessages)[number]>;

export function createDescriptorCopies(): DescriptorCopies {
  let held: HeldDescriptors | undefined;
  let collector: Collector | undefined;

  function drop(): void {
    collector?.[Symbol.dispose]();
    held?.[Symbol.dispose]();
    [collector, held] = [undefined, undefined];
  }

  function collect(message: MessageOf<'everything' | 'add' | 'holding'>, descriptors: number[]): void {
    const complete = collector?.take(message, descriptors);
    if (complete === undefined) return;
    // Close the old ones last: they keep the mounts alive until the new ones have arrived.
    held?.[Symbol.dispose]();
    [collector, held] = [undefined, complete];
  }

  return {
    get held() {
      return held;
    },
    get mounts() {
      return [...(held?.mounts.keys() ?? [])];
    },
    take: (message, descriptors) => {
      if (message.kind === 'everything') {
        collector?.[Symbol.dispose]();
        collector = createCollector();
      }
      // Ignore messages about descriptors dropped here; the connection closes what they carry.
      if (message.kind === 'remove') held?.dropMount(message.mount);
      else if (message.kind === 'letGo') held?.dropSocket(message.socket);
      else if (collector !== undefined) collect(message, descriptors);
      else if (held !== undefined && message.kind === 'add') addMounts(held, message, descriptors);
      else if (held !== undefined && message.kind === 'holding') holdSockets(held, message, descriptors);
    },
    drop,
    [Symbol.dispose]: drop,
  };
}
