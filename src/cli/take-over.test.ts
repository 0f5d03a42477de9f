import { beforeEach, expect, test } from 'vitest';
import { invalid } from './problem.ts';
import { type CommandResult, page, run, type Server, scriptedServer, store, volume } from './scripted-server.ts';
import type { TakeOverCandidate, TakeOverRequest, TakeOverState } from './take-over-service.ts';

const candidate = (name: string, state: TakeOverState, detail = ''): TakeOverCandidate => ({
  claim: name === '' ? null : `shop/${name}`,
  from: `pvc-${name}`,
  to: `pvc-${name}-stowage`,
  directory: `dir-${name}`,
  state,
  detail,
});

/** The store's state and identity. */
let silver: object;
beforeEach(() => {
  silver = { identity: 'of-silver' };
});

/** Runs the command with a Stowage that has the volume `silver/dir-known`, and a cluster with these claims. */
async function takeOver(candidates: readonly TakeOverCandidate[], ...words: readonly string[]) {
  const done: string[] = [];
  const wishes: TakeOverRequest[] = [];
  const accounts: (string | undefined)[] = [];
  const listedFor: string[] = [];
  const identities: (string | undefined)[] = [];
  await using server: Server = await scriptedServer({
    'GET /v1/volumes': page(volume('silver', 'dir-known', { id: 'sv1-known' }), volume('gold', 'dir-other')),
    'GET /v1/stores/silver': [200, store('silver', silver)],
    'POST /v1/stores/silver/adopt': ({ body }) => {
      const { names, dryRun } = body as { names: string[]; dryRun: boolean };
      done.push(`${dryRun ? 'would adopt' : 'adopt'} ${names.join(' ')}`);
      const skipped = names.filter((name) => name === 'dir-broken').map((name) => ({ name, reason: 'it is a file' }));
      const adopted = names
        .filter((name) => name !== 'dir-broken')
        .map((name) => ({ name, id: dryRun ? null : `sv1-of-${name}`, how: 'data' }));
      return [200, { adopted, skipped }];
    },
  });
  const ran: CommandResult = await run(server, ['take-over', ...words], {
    injected: {
      program: 'kubectl stowage',
      cluster: async ({ account }) => {
        accounts.push(account);
        return { kind: 'socket', path: server.socket } as never;
      },
      takeOver: async (wish) => {
        wishes.push(wish);
        return {
          findCandidates: async (action) => {
            listedFor.push(action);
            return { candidates, otherServers: ['10.0.0.9'] };
          },
          take: async ({ claim }, id, identity) => {
            identities.push(identity);
            if (claim === 'shop/late') throw invalid('a pod came', 'take-over-not-possible', 'Wait.');
            done.push(`take ${claim} as ${id}`);
          },
          undo: async ({ claim }) => void done.push(`undo ${claim}`),
          finish: async ({ claim, to }, identity) => {
            identities.push(identity);
            done.push(`finish ${claim}`);
            return claim === 'shop/kept' ? `its reclaim policy stays Retain: kubectl patch pv ${to}` : '';
          },
          [Symbol.dispose]: () => void done.push('over'),
        };
      },
    },
  });
  return { ...ran, done, wishes, accounts, looked: listedFor, identities };
}

test('without claims, take-over lists the candidates and changes nothing', async () => {
  const all = [candidate('a', 'ready'), candidate('broken', 'ready'), candidate('b', 'used', 'used by pod b-0')];
  const { status, stdout, stderr, done, wishes, accounts } = await takeOver(all, 'silver', '--context', 'other');
  expect(status).toBe(0);
  expect(stdout).toMatch(/^CLAIM +STATE +FROM +DIRECTORY +DETAIL\nshop\/a +ready +pvc-a +dir-a +-\n/);
  expect(stdout).toMatch(/shop\/broken +impossible .* its directory: it is a file\n/);
  expect(stdout).toMatch(/shop\/b +used .* used by pod b-0\n/);
  expect(stderr).toContain('1 claim can be taken over: specify them, or use --all');
  expect(stderr).toContain(
    'other PersistentVolumes are on 10.0.0.9; if this is another name of the server of silver, add: --server NAME',
  );
  expect(done).toEqual(['would adopt dir-a dir-broken', 'over']);
  expect(wishes).toMatchObject([{ store: 'silver', servers: [], context: 'other' }]);
  expect(accounts).toEqual(['stowage-adopter']);
});

test('--all takes over all possible claims, including existing volumes, and lists the rest', async () => {
  const all = [
    candidate('a', 'ready'),
    candidate('known', 'begun'),
    candidate('late', 'ready'),
    candidate('b', 'used', 'used by pod b-0'),
    candidate('c', 'taken-over'),
    candidate('', 'unclaimed'),
  ];
  const { status, stdout, done } = await takeOver(all, 'silver', '--all', '--server', '10.0.0.9');
  expect(status).toBe(1);
  expect(stdout.split('\n').sort()).toEqual([
    '',
    'skipped shop/b: used by pod b-0',
    'skipped shop/late: a pod came. Wait.',
    'took over shop/a: PersistentVolume pvc-a-stowage, directory dir-a',
    'took over shop/known: PersistentVolume pvc-known-stowage, directory dir-known',
  ]);
  expect(done.sort()).toEqual([
    'adopt dir-a dir-late',
    'over',
    'take shop/a as sv1-of-dir-a',
    'take shop/known as sv1-known',
    'would adopt dir-a dir-late',
  ]);
});

test('takes over only the named claims', async () => {
  const all = [candidate('a', 'ready'), candidate('ab', 'ready')];
  expect((await takeOver(all, 'silver', 'shop/a')).done).toContain('take shop/a as sv1-of-dir-a');
  expect((await takeOver(all, 'silver', 'shop/a')).done).not.toContain('take shop/ab as sv1-of-dir-ab');
  expect((await takeOver(all, 'silver', 'shop')).done).toContain('take shop/ab as sv1-of-dir-ab');
  expect(await takeOver(all, 'silver', 'sho', 'shop/b')).toMatchObject({
    status: 2,
    done: ['over'],
    stderr: expect.stringContaining("no claim 'sho', 'shop/b' has a directory on the export of the store"),
  });
});

test('an unbound candidate is reported only if it is named', async () => {
  const all = [candidate('gone', 'unclaimed', 'no claim is bound to the PersistentVolume')];
  const named = await takeOver(all, 'silver', 'shop/gone');
  expect(named).toMatchObject({ status: 1, stdout: 'skipped shop/gone: no claim is bound to the PersistentVolume\n' });
  expect(await takeOver(all, 'silver', '--all')).toMatchObject({ status: 0, stdout: '' });
});

test('--dry-run adopts and takes over nothing', async () => {
  const { stdout, done, status } = await takeOver([candidate('a', 'ready')], 'silver', 'shop/a', '--dry-run');
  expect({ status, stdout }).toEqual({
    status: 0,
    stdout: 'would take over shop/a: PersistentVolume pvc-a-stowage, directory dir-a\n',
  });
  expect(done).toEqual(['would adopt dir-a', 'over']);
  const interrupted = await takeOver([candidate('known', 'begun', 'used by pod b-0')], 'silver', '--all', '--dry-run');
  expect(interrupted.stdout).toBe(
    'would take over shop/known: PersistentVolume pvc-known-stowage, directory dir-known; used by pod b-0\n',
  );
});

test('--undo and --finish act on claims that were taken over', async () => {
  const all = [
    candidate('a', 'ready'),
    candidate('b', 'begun', 'the take-over was interrupted'),
    candidate('c', 'taken-over'),
  ];
  const undone = await takeOver(all, 'silver', '--all', '--undo');
  expect(undone.done).toEqual(['undo shop/b', 'undo shop/c', 'over']);
  expect(undone).toMatchObject({
    status: 0,
    stdout: expect.stringContaining('gave back shop/c: PersistentVolume pvc-c'),
  });
  expect(undone.looked).toEqual(['undo']);
  const finished = await takeOver(all, 'silver', '--all', '--finish', '--json');
  expect(finished.done).toEqual(['finish shop/c', 'over']);
  expect(finished.status).toBe(1);
  expect(JSON.parse(finished.stdout)).toEqual([
    { claim: 'shop/c', done: true, detail: 'PersistentVolume pvc-c-stowage, directory dir-c' },
    { claim: 'shop/b', done: false, detail: 'the take-over was interrupted' },
  ]);
  expect(await takeOver(all, 'silver', '--undo', '--finish')).toMatchObject({ status: 2, done: [] });
});

test('prints what the user should know about a finished claim', async () => {
  const all = [candidate('c', 'taken-over'), candidate('kept', 'taken-over')];
  const { status, stdout } = await takeOver(all, 'silver', '--all', '--finish');
  expect(status).toBe(0);
  expect(stdout.split('\n').sort()).toEqual([
    '',
    'finished shop/c: PersistentVolume pvc-c-stowage, directory dir-c',
    'finished shop/kept: PersistentVolume pvc-kept-stowage, directory dir-kept; its reclaim policy stays Retain: kubectl patch pv pvc-kept-stowage',
  ]);
});

test("the store's identity is passed on when a claim is taken over or finished", async () => {
  const all = [candidate('a', 'ready'), candidate('c', 'taken-over')];
  expect((await takeOver(all, 'silver', '--all')).identities).toEqual(['of-silver']);
  expect((await takeOver(all, 'silver', '--all', '--finish')).identities).toEqual(['of-silver']);
  silver = { identity: null };
  expect((await takeOver(all, 'silver', '--all', '--finish')).identities).toEqual([undefined]);
});

test('nothing is finished while the store is not open and its identity is unknown', async () => {
  silver = { identity: null, state: 'unavailable' };
  const { status, done, stderr } = await takeOver([candidate('c', 'taken-over')], 'silver', '--all', '--finish');
  expect({ status, done }).toEqual({ status: 10, done: ['over'] });
  expect(stderr).toContain("store 'silver' is not open");
});
