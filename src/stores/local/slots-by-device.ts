import { type CallSlots, createSlots } from '../file-store/call-slots.ts';

/**
 * A disk that does not answer keeps each file call for ever, and with it one of the few threads that all stores share.
 * So each store has only so many places for its calls, and a call keeps its place until it really ends, however early
 * its caller gave up.
 */

/** One file call at a time each. Fewer made 32 requests at once slower, more did not make them faster. */
export const shortCalls = 16;
const longCalls = 3;
/** File calls that one long call has under way at once. */
export const fileCallsPerLongCall = 4;
/** The most file calls that one store can have under way, whatever is asked of it. */
export const maxFileCalls = shortCalls + longCalls * fileCallsPerLongCall;

/** By device: several stores on one disk that does not answer hold no more than one would. */
export type SlotsOfDevice = (device: bigint) => CallSlots;

export function createSlotsByDevice(): SlotsOfDevice {
  const disks = new Map<bigint, CallSlots>();
  return (device) => {
    const known = disks.get(device) ?? createDeviceSlots();
    disks.set(device, known);
    return known;
  };
}

const createDeviceSlots = (): CallSlots => ({ short: createSlots(shortCalls), long: createSlots(longCalls) });
