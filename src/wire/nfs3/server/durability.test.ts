import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { XdrWriter } from '../../xdr/writer.ts';
import { stability } from '../structures.ts';
import { createToAttributes } from './attributes.ts';
import { createDataProcedures } from './data-procedures.ts';
import { createSyncCoalescer } from './durability.ts';
import type { Export } from './export.ts';
import { createExportedTree } from './exported-tree.ts';
import { createHandles } from './handles.ts';
import { createIdentities } from './identities.ts';
import { createNode, createNodes } from './nodes.ts';
import { readerOf, servedProcedure } from './procedure.ts';
import { createReadMemory } from './read-memory.ts';

describe('callers that sync the same file', () => {
  const node = createNode(1n, 1n, undefined, '');
  const other = createNode(2n, 1n, undefined, '');

  test('share one fsync that starts after all of their calls', async () => {
    const coalesce = createSyncCoalescer();
    const runs: PromiseWithResolvers<void>[] = [];
    const run = (): Promise<void> => {
      runs.push(Promise.withResolvers());
      return runs.at(-1)?.promise ?? Promise.resolve();
    };
    const done: string[] = [];
    const recordWhenDone = (name: string): void => void coalesce(node, run).then(() => done.push(name));
    recordWhenDone('first');
    recordWhenDone('second');
    recordWhenDone('third');
    expect(runs).toHaveLength(1);
    void coalesce(other, run);
    expect(runs).toHaveLength(2);
    runs[0]?.resolve();
    await new Promise((resolve) => setImmediate(resolve));
    expect(done).toEqual(['first']);
    expect(runs).toHaveLength(3);
    recordWhenDone('fourth');
    runs[2]?.resolve();
    await new Promise((resolve) => setImmediate(resolve));
    expect(done).toEqual(['first', 'second', 'third']);
    expect(runs).toHaveLength(4);
    runs[3]?.resolve();
    await new Promise((resolve) => setImmediate(resolve));
    expect(done).toEqual(['first', 'second', 'third', 'fourth']);
  });

  test('get the error when it fails; later callers do not', async () => {
    const coalesce = createSyncCoalescer();
    let runs = 0;
    const run = async (): Promise<void> => {
      if (++runs === 1) throw new Error('no');
    };
    const [first, second] = [coalesce(node, run), coalesce(node, run)];
    await expect(first).rejects.toThrow('no');
    await second;
    expect(runs).toBe(2);
  });
});

describe.skipIf(lacks('linux'))('a failing disk', () => {
  test('is reported to the writer, and the verifier changes for all other clients', async () => {
    const directory = fs.mkdtempSync(join(tmpdir(), 'stowage-nfs-disk-'));
    onTestFinished(() => fs.rmSync(directory, { recursive: true }));
    fs.writeFileSync(join(directory, 'f'), '');
    const handles = createHandles(Buffer.alloc(32, 1));
    const nodes = createNodes(handles, 10);
    const tree = createExportedTree({ path: directory, maxDescriptors: 10, ownsProcess: false }, nodes);
    onTestFinished(() => tree.close());
    const identities = createIdentities({
      squash: 'none',
      anonymous: { uid: 1, gid: 1 },
      users: [],
      groups: [],
      serverUser: { uid: 0, gid: 0, groups: [], isRoot: true },
    });
    const renewals: number[] = [];
    const errors: string[] = [];
    const diskError = Object.assign(new Error('the disk is broken'), { code: 'EIO' });
    const exported = {
      tree,
      nodes,
      handles,
      identities,
      isReadOnly: false,
      isDurable: true,
      toAttributes: createToAttributes(1n, identities),
      durability: { syncData: () => Promise.reject(diskError), syncChanges: () => Promise.resolve() },
      verifier: { bytes: Buffer.alloc(8), renew: () => renewals.push(1) },
      onError: (what: string) => errors.push(what),
    } as unknown as Export;
    const [, write, commit] = createDataProcedures(createReadMemory(), 1).map((one) => servedProcedure(exported, one));
    const stats = fs.lstatSync(join(directory, 'f'), { bigint: true });
    const handle = nodes.handleOf(tree.nodeFor(tree.root, 'f', stats));
    const caller = { address: '::1', port: 1, isEncrypted: false, identity: undefined };
    const status = async (procedure: typeof write, args: XdrWriter): Promise<number> => {
      const reply = await procedure?.handle(readerOf(Buffer.from(args.written)), caller);
      const writer = new XdrWriter();
      reply?.(writer);
      return writer.written.readUInt32BE(0);
    };
    const writeArgs = (stable: number): XdrWriter =>
      new XdrWriter().latin1(handle).size(0).u32(1).u32(stable).opaque(Buffer.from('x'));
    expect(await status(write, writeArgs(stability.unstable))).toBe(0);
    expect(renewals).toHaveLength(0);
    expect(await status(write, writeArgs(stability.fileSync))).toBe(5);
    expect(await status(commit, new XdrWriter().latin1(handle).size(0).u32(0))).toBe(5);
    expect(renewals).toHaveLength(2);
    expect(errors).toEqual(['WRITE failed', 'COMMIT failed']);
  });
});
