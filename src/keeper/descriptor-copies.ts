import { addMounts, type Collector, createCollector, type HeldDescriptors, holdSockets } from './held-descriptors.ts';
import type { MessageOf } from './protocol.ts';

/**
 * A second holder of what a keeper holds. The kernel ends a FUSE connection with its last descriptor: as long as these are here,
 * the keeper may be killed together with its data path, and whoever uses a mount waits until the next keeper has been given all
 * of it. For the same reason nothing is kept here that the keeper has dropped.
 */
export interface DescriptorCopies extends Disposable {
  /** Undefined: nothing was ever given, or it was dropped. */
  readonly held: HeldDescriptors | undefined;
  readonly mounts: readonly string[];
  take(message: CopyMessage, descriptors: number[]): void;
  /** From now on nothing is held, until everything comes again. */
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
    const whole = collector?.take(message, descriptors);
    if (whole === undefined) return;
    // Only now: until the new ones are here, the old ones keep the mounts.
    held?.[Symbol.dispose]();
    [collector, held] = [undefined, whole];
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
      // What is told of something that was dropped here is of no use: its descriptors are closed by the line.
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
