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
  attributesOf(name: string): Attributes | undefined;
  remove(name: string): boolean;
}

function createTree(oldFiles: number): BlockTree {
  const files = new Map<string, Set<number>>();
  const sizes: FileSizes = new Map();
  const put: BlockTree['put'] = (name, first, count) => {
    const blocksOfFile = files.get(name) ?? new Set();
    for (let i = 0; i < count; i++) blocksOfFile.add(first + i);
    files.set(name, blocksOfFile);
    sizes.set(name, blocksOfFile.size * block);
  };
  for (let i = 0; i < oldFiles; i++) put(`old-${i}`, 0, 2);
  return {
    sizes,
    put,
    attributesOf: (name) => {
      const blocksOfFile = files.get(name);
      return blocksOfFile && attributesOf(blocksOfFile.size, Math.max(0, ...[...blocksOfFile].map((one) => one + 1)));
    },
    remove: (name) => files.delete(name) && sizes.delete(name),
  };
}

const attributesOf = (used: number, size: number): Attributes =>
  ({ type: fileType.regular, links: 1, used: used * block, size: size * block }) as Attributes;

interface WritingNode extends QuotaNode {
  /** False: EDQUOT. Otherwise the write is accepted and reaches the server later. In blocks. */
  write(name: string, first: number, count: number): Promise<boolean>;
  remove(name: string): Promise<void>;
  flush(): Promise<unknown>;
}

/** A node like the file system: writes stay buffered for a while before the server has them. */
function createWritingNode(folder: SharedFolder, server: BlockTree, member: string): WritingNode {
  const quotaNode = startQuotaNode(folder, server.sizes, member, storedGrowth(), blocks * block);
  const names: string[] = [];
  const cachedAttributes = new Map<number, Attributes>();
  const pendingWrites = new Map<number, Promise<void>>();
  let lastPlace = 0;
  const request = (): Request => ({ slot: ++lastPlace, signal: neverAborts }) as Request;
  const idOf = (name: string): number => (names.includes(name) ? names.indexOf(name) : names.push(name) - 1);
  const charges = createCharges({
    quota: quotaNode.quota,
    attributes: {
      lastSeen: (id) => cachedAttributes.get(id),
      epoch: () => 1,
      ageMs: (id) => (cachedAttributes.has(id) ? 0 : Number.POSITIVE_INFINITY),
    },
    getattr: async (id) => {
      await folder.turn();
      const found = server.attributesOf(names[id] ?? '');
      await folder.turn();
      if (found === undefined) throw new Errno('ESTALE');
      return found;
    },
    waitFor: (waitingRequest, work) => work(waitingRequest.signal),
  });

  async function send(name: string, first: number, count: number, place: number): Promise<void> {
    if (folder.random(3) === 0) await folder.clock.sleep(folder.random(8_000), neverAborts);
    await folder.turn();
    server.put(name, first, count);
    const after = server.attributesOf(name);
    await folder.turn();
    if (after !== undefined) cachedAttributes.set(idOf(name), after);
    charges.settle(place);
  }

  return {
    ...quotaNode,
    write: async (name, first, count) => {
      const id = idOf(name);
      if (!cachedAttributes.has(id)) cachedAttributes.set(id, attributesOf(0, 0));
      const writeRequest = request();
      try {
        await charges.write(id, first * block, count * block, writeRequest);
      } catch (cause) {
        if (cause instanceof Errno && cause.code === 'EDQUOT') return false;
        throw cause;
      }
      const before = pendingWrites.get(id);
      pendingWrites.set(
        id,
        Promise.all([before, send(name, first, count, writeRequest.slot)]).then(() => undefined),
      );
      return true;
    },
    remove: async (name) => {
      const id = idOf(name);
      await pendingWrites.get(id);
      const before = await charges.spaceToFree(id, request());
      await folder.turn();
      if (!server.remove(name)) return;
      await folder.turn();
      charges.recordRemoval(id, before);
      cachedAttributes.delete(id);
    },
    flush: () => Promise.all(pendingWrites.values()),
  };
}

/** The last seed: a file is removed and rewritten during a count. */
const seeds = [...Array.from({ length: 16 }, (_, i) => i + 1), 168];

describe.each(seeds)('concurrent nodes with seed %d', (seed) => {
  test("never exceed the volume's size on the server, whatever they write, free and count", async () => {
    const folder = createSharedFolder(seed * 7919);
    const { random } = folder;
    const server = createTree(24);
    const nodes = ['a', 'b', 'c'].map((member) => createWritingNode(folder, server, member));
    let [maxUsed, refused, workingNodes] = [0, 0, nodes.length];
    const writeAndRemove = async (one: WritingNode, nodeIndex: number): Promise<void> => {
      for (let step = 0; step < 150; step++) {
        const ownFile = `${nodeIndex}-${random(6)}`;
        if (random(4) === 0) await one.remove(random(3) === 0 ? `old-${random(24)}` : ownFile);
        else if (!(await one.write(ownFile, random(24), 1 + random(4)))) refused++;
        if (random(12) === 0) await folder.clock.sleep(random(3_000), neverAborts);
      }
      await one.flush();
      workingNodes--;
    };
    const recountUntilDone = async (): Promise<void> => {
      for (const { recount } of nodes.values()) await recount(neverAborts);
      if (workingNodes > 0) await recountUntilDone();
    };
    await folder.run(Promise.all([...nodes.map(writeAndRemove), recountUntilDone()]), () => {
      maxUsed = Math.max(maxUsed, sizeOf(server.sizes));
      expect(sizeOf(server.sizes)).toBeLessThanOrEqual(blocks * block);
    });
    // Otherwise nothing was tested.
    expect(refused).toBeGreaterThan(0);
    expect(maxUsed).toBeGreaterThan(blocks * block * 0.75);
    expect((JSON.parse(folder.texts.get('base') ?? '{}') as { epoch: number }).epoch).toBeGreaterThan(3);
    await folder.run(Promise.all(nodes.map(({ quota }) => quota.close())), () => undefined);
  });
});
