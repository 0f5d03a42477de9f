import { beforeEach, describe, expect, test } from 'vitest';
import { Errno } from '#wire/fuse/errno.ts';
import type { Attributes } from '#wire/nfs3/structures.ts';
import { type Charges, createCharges } from './charges.ts';

const block = 4096;

let files: Map<number, Attributes>;
let admitted: number[];
let balance: number;
let isFull: boolean;
let charges: Charges;

const file = (size: number, used = size, links = 1): Attributes => ({ size, used, links }) as Attributes;

beforeEach(() => {
  [files, admitted, balance, isFull] = [new Map(), [], 0, false];
  charges = createCharges(
    {
      admit: async (bytes) => {
        if (isFull) throw new Errno('EDQUOT');
        admitted.push(bytes);
      },
      changed: (delta) => {
        balance += delta;
      },
    },
    (id) => files.get(id),
  );
});

describe('writing', () => {
  test('beyond the end costs whole blocks, each once', async () => {
    files.set(1, file(0));
    await charges.write(1, 0, 10);
    expect(charges.write(1, 10, 100)).toBeUndefined();
    await charges.write(1, block - 1, 2);
    expect(admitted).toEqual([block, block]);
    expect(balance).toBe(2 * block);
  });

  test('over what is there costs nothing', () => {
    files.set(1, file(10 * block));
    expect(charges.write(1, 0, 10 * block)).toBeUndefined();
  });

  test('far behind the end costs what is written, not the hole', async () => {
    files.set(1, file(block));
    await charges.write(1, 1_000 * block, block);
    expect(admitted).toEqual([block]);
  });

  test('into holes costs what is written, and no more than the holes', async () => {
    files.set(1, file(4 * block, block));
    await charges.write(1, 0, 2 * block);
    await charges.write(1, 2 * block, 2 * block);
    expect(charges.write(1, 0, 4 * block)).toBeUndefined();
    expect(admitted).toEqual([2 * block, block]);
  });

  test('that is refused costs nothing, and is asked for again', async () => {
    files.set(1, file(0));
    isFull = true;
    await expect(charges.write(1, 0, block)).rejects.toMatchObject({ code: 'EDQUOT' });
    expect(balance).toBe(0);
    isFull = false;
    await charges.write(1, 0, block);
    expect(admitted).toEqual([block]);
  });

  test('to a file of which nothing is known costs all of it', async () => {
    await charges.write(1, 0, block);
    expect(admitted).toEqual([block]);
  });
});

describe('freeing', () => {
  test('a cut file gives back what it had, also what the server was not told yet', async () => {
    files.set(1, file(0));
    await charges.write(1, 0, 8 * block);
    charges.resized(1, file(0), file(0));
    expect(balance).toBe(0);
    await charges.write(1, 0, block);
    expect(balance).toBe(block);
  });

  test('a file that is made longer gives back nothing', () => {
    charges.resized(1, file(block), file(9 * block, block));
    expect(balance).toBe(0);
  });

  test('the last name gives back the room, another one does not', () => {
    charges.removed(1, file(block, block, 2));
    expect(balance).toBe(0);
    charges.removed(1, file(block, block, 1));
    expect(balance).toBe(-block);
    charges.removed(undefined, undefined);
    expect(balance).toBe(-block);
  });
});
