import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { openRecords } from '#records/sqlite.ts';
import { collectingLog } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { startEmbeddedNfs } from './embedded-nfs.ts';
import { prepareState } from './state-folder.ts';

test('a server that cannot start is not waited for, and its error is known at once', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-embedded-'));
  const state = await prepareState(folder, join(folder, 's'));
  const records = openRecords(state.database);
  onTestFinished(() => {
    records.close();
    rmSync(folder, { recursive: true });
  });
  const problem = { detail: 'cannot listen on 127.0.0.1:2049: the port is in use', reason: 'nfs-port-in-use' };
  const failing = `console.error(${JSON.stringify(JSON.stringify(problem))}); process.exitCode = 5`;
  // The clock does not advance, so any wait would never end.
  await using nfs = await startEmbeddedNfs(
    { program: [process.execPath, '--eval', failing, '--'], port: 2049 },
    { state, socket: join(folder, 'sock'), records, clock: createFakeClock(), log: collectingLog() },
  );
  await nfs.started;
  expect(nfs.child.problem).toMatchObject({
    reason: 'nfs-server-down',
    message: 'the embedded NFS server is not running: cannot listen on 127.0.0.1:2049: the port is in use',
    action: 'Stop the program that uses it, or choose another port: stowage up --nfs PORT',
  });
});
