/**
 * Works with stores on a disk that it freezes, and with a store on another disk. Prints the results as JSON. It is a
 * separate program, because it needs a known number of threads, and its calls on a frozen disk cannot be cancelled.
 */
import { execFile } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import type { Store } from '#core/ports.ts';
import { scope } from './contracts/store.ts';
import { openLocal } from './local-store.ts';
import { volumeSpec } from './volume-spec.ts';

const run = promisify(execFile);
const [disk = '', elsewhere = ''] = process.argv.slice(2);

const create = (store: Store, name: string, signal = scope.signal): Promise<Volume> =>
  store.create(volumeSpec(name), { ...scope, signal });

const outcome = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'done',
    (cause: unknown) => (cause instanceof StowageError ? cause.code : String(cause)),
  );
/** `how` is undefined until the work has ended. */
const watchOutcome = (work: Promise<unknown>): { how: string | undefined; readonly ended: Promise<unknown> } => {
  const watch: ReturnType<typeof watchOutcome> = {
    how: undefined,
    ended: outcome(work).then((how) => {
      watch.how = how;
    }),
  };
  return watch;
};

const roots = { hung: join(disk, 'hung'), known: join(disk, 'known'), fresh: join(disk, 'fresh'), fine: elsewhere };
for (const root of Object.values(roots)) await mkdir(root, { recursive: true });
await (await openLocal(roots.known)).close();
// Opening this store on the frozen disk has to create the lock again, on the main thread. Only the write before it, on the thread pool,
// keeps the main thread from hanging.
await rm(join(roots.known, '.stowage', 'lock'));
const fine = await openLocal(roots.fine);
const hung = await openLocal(roots.hung);
const full = await create(hung, 'full');
for (let i = 0; i < 20; i++) await writeFile(join(roots.hung, 'full', `${i}`), '');
await hung.delete(full, scope);

await run('fsfreeze', ['--freeze', disk]);
const reclaim = watchOutcome(hung.housekeeping.reclaim(scope));
const namesBesideReclaim = await outcome(hung.names(scope));
const opening = [roots.known, roots.fresh].map((root) => openLocal(root));
const opens = opening.map(watchOutcome);
const abortedLater = new AbortController();
const creates = Array.from({ length: 50 }, (_, i) => watchOutcome(create(hung, `v${i}`, abortedLater.signal)));
const repeated = watchOutcome(create(hung, 'v0', abortedLater.signal));
const deletesElsewhere: string[] = [];
for (let i = 0; i < 5; i++) {
  const made = await create(fine, `v${i}`);
  deletesElsewhere.push(await outcome(fine.delete(made, scope)));
}
abortedLater.abort(new StowageError('enough', { code: 'deadline', reason: 'deadline', action: 'None.' }));
await outcome(fine.housekeeping.reclaim(scope));
using limit = systemClock().deadline(200, scope.signal);
const whileFrozen = {
  namesBesideReclaim,
  besides: deletesElsewhere,
  reclaim: reclaim.how,
  opens: opens.map(({ how }) => how),
  stuck: creates.filter(({ how }) => how === undefined).length,
  gaveUp: creates.filter(({ how }) => how === 'deadline').length,
  repeated: repeated.how,
  // The caller gave up, but its call still runs on the disk and holds the name.
  sameName: await outcome(create(hung, 'v0', limit.signal)),
  check: await outcome(hung.check({ ...scope, signal: limit.signal })),
};
await run('fsfreeze', ['--unfreeze', disk]);

for (const { ended } of [reclaim, ...opens, ...creates]) await ended;
for (const store of await Promise.all(opening)) await store.close();
const afterwards = {
  reclaim: reclaim.how,
  opens: opens.map(({ how }) => how),
  sameName: await outcome(create(hung, 'v0')),
  orphans: (await hung.housekeeping.orphans(scope)).length,
};
await hung.close();
await fine.close();
process.stdout.write(JSON.stringify({ whileFrozen, afterwards }));
