import { cp, mkdir, mkdtemp, readFile, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';
import { expect, onTestFinished, test } from 'vitest';
import { startStowage } from './stowage.ts';

const oldTables = fileURLToPath(new URL('../src/records/fixtures/version-0.sql', import.meta.url));
const oldStore = fileURLToPath(new URL('../src/stores/local/fixtures/version-0', import.meta.url));

/** Writes a state folder like version 0: its tables, with one store and its volumes. Returns the ids of the volumes. */
async function createOldState(state: string, root: string): Promise<string[]> {
  await mkdir(state);
  const db = new DatabaseSync(join(state, 'state.db'));
  const tables = (await readFile(oldTables, 'utf8')).split(';\n').filter((statement) => statement.startsWith('CREATE'));
  for (const statement of tables) db.exec(statement);
  db.prepare('INSERT INTO settings VALUES (?, ?)').run('instance', '7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11');
  db.prepare('INSERT INTO stores VALUES (?, ?)').run('old', `local://${root}`);
  const ids: string[] = [];
  for (const name of ['alpha', 'beta']) {
    const meta = JSON.parse(await readFile(join(root, `${name}.meta`), 'utf8')) as { id: string; requestId: string };
    ids.push(meta.id);
    db.prepare('INSERT INTO volumes VALUES (?, ?, ?, NULL, ?, ?, ?)').run(
      meta.id,
      'old',
      name,
      'filesystem',
      meta.requestId,
      1,
    );
  }
  db.close();
  return ids;
}

test('an upgrade keeps everything on a machine with the oldest format', async () => {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-upgrade-')));
  onTestFinished(() => rm(top, { recursive: true, force: true }));
  const root = join(top, 'data');
  await cp(oldStore, root, { recursive: true });
  const ids = await createOldState(join(top, 'state'), root);
  for (const phase of ['upgraded', 'started again']) {
    const server = await startStowage({ state: join(top, 'state') });
    try {
      const { body } = await server.api('GET', '/v1/volumes?store=old');
      expect(
        (body['items'] as { id: string }[]).map((volume) => volume.id),
        phase,
      ).toEqual(ids);
      expect((await server.api('GET', `/v1/volumes/${ids[0]}`)).body).toMatchObject({
        condition: 'ok',
        name: 'alpha',
        access: 'filesystem',
      });
      expect((await server.api('PATCH', `/v1/volumes/${ids[0]}`, { labels: { round: phase } })).status).toBe(200);
      expect((await server.api('GET', '/v1/status')).body).toMatchObject({
        instance: '7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11',
      });
    } finally {
      await server.stop();
    }
  }
});
