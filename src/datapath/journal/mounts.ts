import { type InitFlag, initFlag } from '#wire/fuse/abi.ts';
import type { InitResult } from '#wire/fuse/init.ts';
import type { FileHandle } from '#wire/nfs3/structures.ts';
import type { StoredGrowth } from '../quota/account.ts';
import { maxMountIdBytes, maxMounts, mountRow, mountsAt } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** What a successor must know of a mount beyond what the keeper sends. */
export interface MountRow {
  readonly index: number;
  readonly id: string;
  /** The export's root handle, once known. */
  readonly root: FileHandle | undefined;
  /** The result of FUSE_INIT, once negotiated. */
  readonly initResult: InitResult | undefined;
}

export interface MountRows {
  all(): readonly MountRow[];
  /** The mount's row, created if absent. */
  getOrCreate(id: string): MountRow;
  setRoot(index: number, root: FileHandle): void;
  setInitResult(index: number, initResult: InitResult): void;
  storedGrowth(index: number): StoredGrowth;
  remove(index: number): void;
}

export function createMountRows({ words, view, bytes }: JournalMemory): MountRows {
  const offsetOf = (index: number, field: number): number => mountsAt + index * mountRow.size + field;
  const get = (index: number, field: number): number => view.getUint32(offsetOf(index, field), true);
  const set = (index: number, field: number, value: number): void =>
    view.setUint32(offsetOf(index, field), value, true);
  const setUsed = (index: number, used: number): void =>
    void Atomics.store(words, offsetOf(index, mountRow.used) / 4, used);
  const isUsed = (index: number): boolean => get(index, mountRow.used) !== 0;
  const readBytes = (index: number, field: number, lengthField: number): Buffer => {
    const from = offsetOf(index, field);
    return Buffer.from(bytes.subarray(from, from + get(index, lengthField)));
  };

  const rowAt = (index: number): MountRow => {
    const root = readBytes(index, mountRow.root, mountRow.rootLength);
    return {
      index,
      id: readBytes(index, mountRow.id, mountRow.idLength).toString(),
      root: root.length === 0 ? undefined : root,
      initResult: initResultAt(index),
    };
  };

  function initResultAt(index: number): InitResult | undefined {
    const minor = get(index, mountRow.minor);
    if (minor === 0) return undefined;
    const agreed = [get(index, mountRow.flags), get(index, mountRow.moreFlags)] as const;
    const has = (bit: number): boolean => (((bit < 32 ? agreed[0] : agreed[1]) >>> (bit % 32)) & 1) === 1;
    return { minor, flags: (Object.keys(initFlag) as InitFlag[]).filter((flag) => has(initFlag[flag])) };
  }

  const indexes: readonly number[] = Array.from({ length: maxMounts }, (_, index) => index);
  const indexById = new Map(indexes.filter(isUsed).map((index) => [rowAt(index).id, index]));

  const storedGrowth = (index: number): StoredGrowth => {
    const [epochAt, growthAt] = [offsetOf(index, mountRow.epoch), offsetOf(index, mountRow.growth)];
    return {
      read: () => ({
        epoch: Number(view.getBigInt64(epochAt, true)),
        growth: Number(view.getBigInt64(growthAt, true)),
      }),
      write: (epoch, bytes) => {
        const next = BigInt(epoch);
        // A crash in between leaves no epoch, rather than growth of the wrong epoch.
        if (view.getBigInt64(epochAt, true) !== next) view.setBigInt64(epochAt, 0n, true);
        view.setBigInt64(growthAt, BigInt(bytes), true);
        view.setBigInt64(epochAt, next, true);
      },
    };
  };

  function add(id: string): MountRow {
    const name = Buffer.from(id);
    if (name.length > maxMountIdBytes) throw new RangeError(`a mount's id has at most ${maxMountIdBytes} bytes`);
    const index = indexes.find((one) => !isUsed(one));
    if (index === undefined) throw new RangeError(`at most ${maxMounts} mounts are possible`);
    bytes.set(name, offsetOf(index, mountRow.id));
    set(index, mountRow.idLength, name.length);
    set(index, mountRow.rootLength, 0);
    set(index, mountRow.minor, 0);
    storedGrowth(index).write(0, 0);
    setUsed(index, 1);
    indexById.set(id, index);
    return rowAt(index);
  }

  return {
    all: () => indexes.filter(isUsed).map(rowAt),
    getOrCreate: (id) => {
      const index = indexById.get(id);
      return index === undefined ? add(id) : rowAt(index);
    },
    setRoot: (index, root) => {
      bytes.set(root, offsetOf(index, mountRow.root));
      set(index, mountRow.rootLength, root.length);
    },
    setInitResult: (index, { minor, flags }) => {
      const word = (from: number): number =>
        flags
          .map((flag) => initFlag[flag] - from)
          .reduce((sum, bit) => (bit >= 0 && bit < 32 ? sum | (1 << bit) : sum), 0);
      set(index, mountRow.flags, word(0));
      set(index, mountRow.moreFlags, word(32));
      set(index, mountRow.minor, minor);
    },
    storedGrowth,
    remove: (index) => {
      indexById.delete(rowAt(index).id);
      setUsed(index, 0);
    },
  };
}
