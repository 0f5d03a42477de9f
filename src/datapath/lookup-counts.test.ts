import { closeSync, constants, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { DirentWriter, Entry, Operations, Request } from '#wire/fuse/operations.ts';
import { createFileSystem } from './file-system.ts';
import { createJournal, openJournal } from './journal/memory.ts';
import { createNodeTable } from './journal/nodes.ts';
import { createRequests } from './journal/requests.ts';

const root = 1;
const name = (text: string): Buffer => Buffer.from(text);

describe.skipIf(needs('ganesha', 'linux'))('a request that was executed but not answered, and is resent', () => {
  const it = exportedByGanesha();

  /** The real journal, and successive processes that use it. */
  function journal() {
    const fd = createJournal(4);
    const opened: Disposable[] = [];
    onTestFinished(() => {
      for (const one of opened) one[Symbol.dispose]();
      closeSync(fd);
    });
    let unique = 0;
    return () => {
      const memory = openJournal(fd);
      opened.push(memory);
      const [requests, table] = [createRequests(memory), createNodeTable(memory)];
      requests.unfinished();
      const armed = requests.arm(0) ?? expect.fail();
      const nodes = table.of(0, it.directory);
      const on = createFileSystem({
        nfs: it.nfs,
        nodes,
        proofs: requests,
        clock: systemClock(),
        notify: () => undefined,
        options: { identity: asCaller },
      }) as Operations;
      const take = (): Request => {
        armed.view.setUint32(0, 80, true);
        armed.view.setUint32(8, ++unique, true);
        const { place } = requests.take(0, armed, 80) ?? expect.fail();
        return { uid: 0, gid: 0, pid: 1, slot: place, resent: false, signal: new AbortController().signal };
      };
      /** A request that is answered. */
      const done = async <R>(ask: (request: Request) => R | Promise<R>): Promise<R> => {
        const request = take();
        const answer = await ask(request);
        requests.free(request.slot);
        return answer;
      };
      return { on, nodes, table, requests, take, done };
    };
  }

  const release = (on: Operations, node: number, request: Request) =>
    on.release(node, { fh: 0, unlock: undefined }, request);

  test('does not count a close twice: a file open elsewhere stays', async () => {
    writeFileSync(it.on('file'), 'still read');
    const next = journal();
    const first = next();
    const { node } = await first.done((request) => first.on.lookup(root, name('file'), request));
    for (let i = 0; i < 2; i++) await first.done((request) => first.on.open(node, constants.O_RDONLY, request));
    const releases = first.take();
    await release(first.on, node, releases);

    const second = next();
    await release(second.on, node, releases);
    second.requests.free(releases.slot);
    expect(second.nodes.get(node)?.opens).toBe(1);
    await second.done((request) => second.on.unlink(root, name('file'), request));
    const [hidden = ''] = readdirSync(it.folder);
    expect(readFileSync(it.on(hidden), 'utf8')).toBe('still read');
    await second.done((request) => release(second.on, node, request));
    expect(readdirSync(it.folder)).toEqual([]);
  });

  test('does not count an open or a create twice: a removed file goes with its last close', async () => {
    const next = journal();
    const first = next();
    const [creating, opening] = [first.take(), first.take()];
    const how = { flags: constants.O_WRONLY | constants.O_EXCL, mode: 0o100600 };
    const { entry } = await first.on.create(root, name('file'), how, creating);
    await first.on.open(entry.node, constants.O_RDONLY, opening);

    const second = next();
    expect((await second.on.create(root, name('file'), how, creating)).entry.node).toBe(entry.node);
    await second.on.open(entry.node, constants.O_RDONLY, opening);
    for (const { slot: place } of [creating, opening]) second.requests.free(place);
    await second.done((request) => second.on.unlink(root, name('file'), request));
    for (let i = 0; i < 2; i++) await second.done((request) => release(second.on, entry.node, request));
    expect(readdirSync(it.folder)).toEqual([]);
    second.on.forget(entry.node, 1);
    expect(second.table.size).toBe(0);
  });

  test('does not count a lookup or a listing twice: no node is left after the kernel forgot all', async () => {
    const names = ['a', 'b', 'c'];
    for (const one of names) writeFileSync(it.on(one), one);
    const next = journal();
    const first = next();
    const [looking, listing] = [first.take(), first.take()];
    const list = async (on: Operations): Promise<readonly Entry[]> => {
      const entries: Entry[] = [];
      const listed: DirentWriter = {
        add: ({ entry }) => {
          if (entry !== undefined) entries.push(entry);
          return true;
        },
      };
      await on.readdir(root, { fh: 1, offset: 0n, plus: true }, listed, listing);
      return entries;
    };
    const look = (on: Operations) => on.lookup(root, name('a'), looking);
    await look(first.on);
    await list(first.on);

    const second = next();
    const all = [await look(second.on), ...(await list(second.on))];
    expect(all).toHaveLength(4);
    for (const { node } of all) second.on.forget(node, 1);
    expect(second.table.size).toBe(0);
  });
});
