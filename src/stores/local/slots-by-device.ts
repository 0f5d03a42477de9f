import { type CallSlots, createSlots } from '../file-store/call-slots.ts';

/**
 * On a disk that does not answer, each file call blocks one of the few threads that all stores share. So each store has a limited number of
 * slots for its calls. A call keeps its slot until it really ends, even if its caller gives up earlier.
 */

/** Each makes one file call at a time. With fewer, 32 concurrent requests were slower; with more they were not faster. */
export const shortCalls = 16;
const longCalls = 3;
/** Concurrent file calls of one long call. */
export const fileCallsPerLongCall = 4;
/** The most file calls that one store can have in flight. */
export const maxFileCalls = shortCalls + longCalls * fileCallsPerLongCall;

/** Stores on the same device share slots, so that several stores on a hung disk block no more threads than one. */
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
