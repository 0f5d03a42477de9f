import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { NfsClient } from './client.ts';
import { listDirectory } from './listing.ts';
import type { ReaddirArgs } from './procedures.ts';
import { NfsError, nfsStatus } from './status.ts';
import type { EntryPlus } from './structures.ts';

const entry = (name: string, cookie: number): EntryPlus => ({
  fileId: BigInt(cookie),
  name,
  bytes: undefined,
  cookie: BigInt(cookie),
  attributes: undefined,
  handle: undefined,
});
const badCookie = (): NfsError => new NfsError('READDIRPLUS', nfsStatus.BAD_COOKIE, false);
const handle = new Uint8Array(8);

type Answer = { readonly entries: readonly EntryPlus[]; readonly isEnd: boolean; readonly verifier: bigint };

/** A client whose replies come from `answer`. */
function scriptedClient(
  answer: (args: ReaddirArgs, call: number) => Answer,
): Pick<NfsClient, 'readdirplus' | 'readdir'> {
  let calls = 0;
  const next = async (args: ReaddirArgs): Promise<Answer> => answer(args, ++calls);
  return { readdirplus: next, readdir: next };
}

const names = async (client: Pick<NfsClient, 'readdirplus' | 'readdir'>): Promise<string[]> =>
  (await Array.fromAsync(listDirectory(client, handle))).flat().map(({ name }) => name);

/** A directory with `count` entries, in pages. */
const directory =
  (count: number, perPage: number) =>
  (args: ReaddirArgs): Answer => {
    const from = Number(args.cookie);
    const entries = Array.from({ length: Math.min(perPage, count - from) }, (_, i) =>
      entry(`f${from + i}`, from + i + 1),
    );
    return { entries, isEnd: from + entries.length >= count, verifier: 7n };
  };

describe('listing a directory', () => {
  test('returns every page, without . and .. and without invalid names', async () => {
    expect(await names(scriptedClient(directory(1000, 17)))).toHaveLength(1000);
    expect(await names(scriptedClient(() => ({ entries: [], isEnd: true, verifier: 0n })))).toEqual([]);
    const unusualNames = ['.', '..', 'a/b', '../../etc', '', 'x\0y', 'n'.repeat(256), 'good'];
    const page = { entries: unusualNames.map((name, i) => entry(name, i + 1)), isEnd: true, verifier: 0n };
    expect(await names(scriptedClient(() => page))).toEqual(['good']);
  });

  test('restarts when the server rejects its cookie, and lists no name twice', async () => {
    const list = directory(100, 10);
    let failed = false;
    const client = scriptedClient((args) => {
      if (args.cookie !== 50n || failed) return list(args);
      failed = true;
      throw badCookie();
    });
    expect(await names(client)).toEqual(Array.from({ length: 100 }, (_, i) => `f${i}`));
  });

  test('falls back from READDIRPLUS to READDIR, and to a size that the server supports', async () => {
    const requestedBytes: number[] = [];
    const client: Pick<NfsClient, 'readdirplus' | 'readdir'> = {
      readdirplus: async () => {
        throw new NfsError('READDIRPLUS', nfsStatus.NOTSUPP, false);
      },
      readdir: async (args) => {
        requestedBytes.push(args.bytes);
        if (args.bytes < 200_000) throw new NfsError('READDIR', nfsStatus.TOOSMALL, false);
        return directory(3, 10)(args);
      },
    };
    expect(await names(client)).toEqual(['f0', 'f1', 'f2']);
    expect(requestedBytes).toEqual([65_536, 262_144]);
  });

  test.each([
    ['empty pages without end', () => ({ entries: [], isEnd: false, verifier: 0n })],
    ['a page that leads to itself', () => ({ entries: [entry('a', 1)], isEnd: false, verifier: 0n })],
    [
      'pages in a circle',
      ({ cookie }: ReaddirArgs) => {
        const from = Number(cookie) % 30;
        return {
          entries: Array.from({ length: 10 }, (_, i) => entry(`f${from + i}`, ((from + i) % 30) + 1)),
          isEnd: false,
          verifier: 0n,
        };
      },
    ],
    [
      'an eternally bad cookie',
      ({ cookie }: ReaddirArgs) => {
        if (cookie !== 0n) throw badCookie();
        return { entries: [entry('a', 1)], isEnd: false, verifier: 0n };
      },
    ],
  ] as [string, (args: ReaddirArgs) => Answer][])('stops at %s', async (_what, answer) => {
    await expect(names(scriptedClient(answer))).rejects.toThrow();
  });

  test('ends for any behaviour of the server, and returns no name twice', async () => {
    const page = fc.record({
      entries: fc.array(fc.tuple(fc.constantFrom('a', 'b', 'c', 'd', '.', 'x/y'), fc.nat(5)), { maxLength: 4 }),
      isEnd: fc.boolean(),
      fails: fc.integer({ min: 0, max: 5 }).map((n) => n === 0),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(page, { minLength: 1, maxLength: 6 }), async (pages) => {
        const client = scriptedClient((_args, call) => {
          const { entries, isEnd, fails } = pages[call % pages.length] as (typeof pages)[number];
          if (fails) throw badCookie();
          return { entries: entries.map(([name, cookie]) => entry(name, cookie)), isEnd, verifier: 0n };
        });
        const listed = await names(client).catch(() => []);
        expect(new Set(listed).size).toBe(listed.length);
      }),
    );
  });
});
