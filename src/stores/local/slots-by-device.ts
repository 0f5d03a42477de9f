import { type CallSlots, createSlots } from '../file-store/call-slots.ts';

/**
 * On a disk that does not answer, each file call blocks one of the few threads that all stores share. So each store has a limited number of
 * slots for its calls. A call keeps its slot until it really ends, even if its caller gives up earlier.
 */

/** Each short call makes one file call at a time. With fewer slots, 32 concurrent requests were slower; with more they were not faster. */
export const maxShortCalls = 16;
const maxLongCalls = 3;
/** Concurrent file calls of one long call. */
export const maxFileCallsPerLongCall = 4;
/** The most file calls that one store can have in flight. */
export const maxFileCalls = maxShortCalls + maxLongCalls * maxFileCallsPerLongCall;

/** Stores on the same device share slots, so that several stores on a hung disk block no more threads than one. */
export type SlotsOfDevice = (device: bigint) => CallSlots;

export function createSlotsByDevice(): SlotsOfDevice {
  const slotsByDevice = new Map<bigint, CallSlots>();
  return (device) => {
    const known = slotsByDevice.get(device) ?? createDeviceSlots();
    slotsByDevice.set(device, known);
    return known;
  };
}

const createDeviceSlots = (): CallSlots => ({ short: createSlots(maxShortCalls), long: createSlots(maxLongCalls) });
