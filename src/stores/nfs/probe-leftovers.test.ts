import { existsSync, mkdirSync, readdirSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import { lacks } from '#testbed/lacks.ts';
import { defaultPolicy } from '#testing/default-policy.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { connectScripted } from '#testing/fakes/scripted-nfs.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import type { NfsClient } from '#wire/nfs3/index.ts';
import { createNfsStoreKind } from './kind.ts';

const minuteMs = 60_000;
const scope = { signal: new AbortController().signal, log: silentLog() };

type Kind = ReturnType<typeof createNfsStoreKind>;

async function check(kind: Kind, uri: string): Promise<void> {
  const config = parseStoreConfig('silver', uri, 'file', new Map([[kind.scheme, kind]]));
  const found = await kind.probe?.(config, defaultPolicy, scope);
  expect(found?.steps.map(({ step, ok }) => `${step} ${ok}`).at(-1)).toBe('room true');
}

/** Creates the file of a check that was killed `ageMs` ago. */
function leaveProbe(path: string, ageMs: number, text = 'probe\n'): string {
  writeFileSync(path, text);
  const seconds = (Date.now() - ageMs) / 1000;
  utimesSync(path, seconds, seconds);
  return path;
}

describe.skipIf(lacks('ganesha', 'root'))('on a real server, a check', () => {
  const ganesha = ganeshaFolders('leftovers');

  test('removes files of checks that were killed long ago, and nothing else', async () => {
    const { folder, uri } = ganesha.fresh();
    const { nfsPort, mountPort } = ganesha.server;
    const pathIn = (name: string): string => join(folder, name);
    const oldMs = 11 * minuteMs;
    const removedPaths = [
      leaveProbe(pathIn('.stowage-check-0123456789ab'), oldMs),
      // The file of a check that was killed before it wrote anything.
      leaveProbe(pathIn('.stowage-check-0123456789ac'), oldMs, ''),
    ];
    leaveProbe(pathIn('.stowage-check-0123456789ad'), 9 * minuteMs);
    leaveProbe(pathIn('.stowage-check-0123456789ae'), oldMs, 'mine!\n');
    leaveProbe(pathIn('.stowage-check-0123456789af'), oldMs, 'probe\nand more');
    leaveProbe(pathIn('.stowage-check-0123456789AB'), oldMs);
    leaveProbe(pathIn('.stowage-check-0123456789abc'), oldMs);
    leaveProbe(pathIn('stowage-check-0123456789ab'), oldMs);
    mkdirSync(pathIn('.stowage-check-0123456789b0'));
    symlinkSync(pathIn('stowage-check-0123456789ab'), pathIn('.stowage-check-0123456789b1'));
    utimesSync(pathIn('.stowage-check-0123456789b0'), 1, 1);
    const before = readdirSync(folder);
    await check(
      createNfsStoreKind(),
      `${uri.replace(ganesha.server.host, `${ganesha.server.host}:${nfsPort}`)}?mountport=${mountPort}`,
    );
    expect(removedPaths.filter((path) => existsSync(path))).toEqual([]);
    expect(readdirSync(folder)).toEqual(before.filter((name) => !removedPaths.includes(pathIn(name))));
  });
});

describe('the file of a check that was killed', () => {
  function startFixture(script: (real: NfsClient) => Partial<NfsClient> = () => ({})) {
    const scratch = createScratchFolder();
    onTestFinished(() => scratch[Symbol.dispose]());
    const { folder } = scratch;
    const clock = createFakeClock();
    const connect = connectScripted(folder, script);
    const kind = createNfsStoreKind(clock, connect, () => connect);
    return {
      clock,
      leave: (ageMs: number) => leaveProbe(join(folder, '.stowage-check-0123456789ab'), ageMs),
      folder,
      check: () => check(kind, 'nfs://nowhere/export'),
    };
  }

  test('is removed when it is old, though not every check lists the directory', async () => {
    let listings = 0;
    const fixture = startFixture((real) => ({
      readdir: (...args) => {
        listings++;
        return real.readdir(...args);
      },
    }));
    fixture.leave(minuteMs);
    await fixture.check();
    expect(readdirSync(fixture.folder)).toHaveLength(1);
    const listingsPerCheck = listings;
    fixture.leave(11 * minuteMs);
    fixture.clock.advance(9 * minuteMs);
    await fixture.check();
    expect([readdirSync(fixture.folder).length, listings]).toEqual([1, listingsPerCheck]);
    fixture.clock.advance(minuteMs);
    await fixture.check();
    expect([readdirSync(fixture.folder).length, listings]).toEqual([0, 2 * listingsPerCheck]);
  });

  test.each<readonly [string, (real: NfsClient) => Partial<NfsClient>]>([
    ['the directory cannot be listed', () => ({ readdir: () => Promise.reject(new Error('no')) })],
    ['the file cannot be read', () => ({ read: () => Promise.reject(new Error('no')) })],
  ])('stays if %s, and the check passes', async (_, script) => {
    const fixture = startFixture(script);
    fixture.leave(11 * minuteMs);
    await fixture.check();
    expect(readdirSync(fixture.folder)).toHaveLength(1);
  });
});
