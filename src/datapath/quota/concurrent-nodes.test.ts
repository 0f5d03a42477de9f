import { describe, expect, test } from 'vitest';
import { createSharedFolder, type SharedFolder } from '#testing/fakes/shared-folder.ts';
import {
  type FileSizes,
  neverAborts,
  type QuotaNode,
  sizeOf,
  startQuotaNode,
  storedGrowth,
} from '#testing/quota-nodes.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import { type Attributes, fileType } from '#wire/nfs3/structures.ts';
import { createCharges } from './charges.ts';

const block = 4096;
/** A volume with sparse files. */
const blocks = 128;

/** The server's files and their blocks. */
interface BlockTree {
  readonly sizes: FileSizes;
  put(name: string, first: number, count: number): void;
  look(name: string): Attributes | undefined;
  remove(name: string): boolean;
}

function createTree(old: number): BlockTree {
  const files = new Map<string, Set<number>>();
  const sizes: FileSizes = new Map();
  const put: BlockTree['put'] = (name, first, count) => {
    const has = files.get(name) ?? new Set();
    for (let i = 0; i < count; i++) has.add(first + i);
    files.set(name, has);
    sizes.set(name, has.size * block);
  };
  for (let i = 0; i < old; i++) put(`old-${i}`, 0, 2);
  return {
    sizes,
    put,
    look: (name) => {
      const has = files.get(name);
      return has && attributesOf(has.size, Math.max(0, ...[...has].map((one) => one + 1)));
    },
    remove: (name) => files.delete(name) && sizes.delete(name),
  };
}

const attributesOf = (used: number, size: number): Attributes =>
  ({ type: fileType.regular, links: 1, used: used * block, size: size * block }) as Attributes;

interface Mounted extends QuotaNode {
  /** False: EDQUOT. Otherwise the write is accepted and reaches the server later. In blocks. */
  write(name: string, first: number, count: number): Promise<boolean>;
  remove(name: string): Promise<void>;
  flush(): Promise<unknown>;
}

/** A node like the file system: writes stay buffered for a while before the server has them. */
function mounted(folder: SharedFolder, server: BlockTree, member: string): Mounted {
  const one = startQuotaNode(folder, server.sizes, member, storedGrowth(), blocks * block);
  const names: string[] = [];
  const known = new Map<number, Attributes>();
  const behind = new Map<number, Promise<void>>();
  let places = 0;
  const request = (): Request => ({ slot: ++places, signal: neverAborts }) as Request;
  const idOf = (name: string): number => (names.includes(name) ? names.indexOf(name) : names.push(name) - 1);
  const charges = createCharges({
    quota: one.quota,
    attributes: {
      last: (id) => known.get(id),
      epoch: () => 1,
      ageMs: (id) => (known.has(id) ? 0 : Number.POSITIVE_INFINITY),
    },
    getattr: async (id) => {
      await folder.turn();
      const found = server.look(names[id] ?? '');
      await folder.turn();
      if (found === undefined) throw new Errno('ESTALE');
      return found;
    },
    waitFor: (asking, work) => work(asking.signal),
  });

  async function send(name: string, first: number, count: number, place: number): Promise<void> {
    if (folder.random(3) === 0) await folder.clock.sleep(folder.random(8_000), neverAborts);
    await folder.turn();
    server.put(name, first, count);
    const after = server.look(name);
    await folder.turn();
    if (after !== undefined) known.set(idOf(name), after);
    charges.written(place);
  }

  return {
    ...one,
    write: async (name, first, count) => {
      const id = idOf(name);
      if (!known.has(id)) known.set(id, attributesOf(0, 0));
      const by = request();
      try {
        await charges.write(id, first * block, count * block, by);
      } catch (cause) {
        if (cause instanceof Errno && cause.code === 'EDQUOT') return false;
        throw cause;
      }
      const before = behind.get(id);
      behind.set(
        id,
        Promise.all([before, send(name, first, count, by.slot)]).then(() => undefined),
      );
      return true;
    },
    remove: async (name) => {
      const id = idOf(name);
      await behind.get(id);
      const before = await charges.spaceToFree(id, request());
      await folder.turn();
      if (!server.remove(name)) return;
      await folder.turn();
      charges.removed(id, before);
      known.delete(id);
    },
    flush: () => Promise.all(behind.values()),
  };
}

/** The last seed: a file is removed and rewritten during a count. */
const seeds = [...Array.from({ length: 16 }, (_, i) => i + 1), 168];

describe.each(seeds)('concurrent nodes with seed %d', (seed) => {
  test("never exceed the volume's size on the server, whatever they write, free and count", async () => {
    const folder = createSharedFolder(seed * 7919);
    const { random } = folder;
    const server = createTree(24);
    const nodes = ['a', 'b', 'c'].map((member) => mounted(folder, server, member));
    let [most, refused, working] = [0, 0, nodes.length];
    const work = async (one: Mounted, who: number): Promise<void> => {
      for (let step = 0; step < 150; step++) {
        const own = `${who}-${random(6)}`;
        if (random(4) === 0) await one.remove(random(3) === 0 ? `old-${random(24)}` : own);
        else if (!(await one.write(own, random(24), 1 + random(4)))) refused++;
        if (random(12) === 0) await folder.clock.sleep(random(3_000), neverAborts);
      }
      await one.flush();
      working--;
    };
    const countOn = async (): Promise<void> => {
      for (const { recount } of nodes.values()) await recount(neverAborts);
      if (working > 0) await countOn();
    };
    await folder.run(Promise.all([...nodes.map(work), countOn()]), () => {
      most = Math.max(most, sizeOf(server.sizes));
      expect(sizeOf(server.sizes)).toBeLessThanOrEqual(blocks * block);
    });
    // Otherwise nothing was tested.
    expect(refused).toBeGreaterThan(0);
    expect(most).toBeGreaterThan(blocks * block * 0.75);
    expect((JSON.parse(folder.texts.get('base') ?? '{}') as { epoch: number }).epoch).toBeGreaterThan(3);
    await folder.run(Promise.all(nodes.map(({ quota }) => quota.close())), () => undefined);
  });
});
