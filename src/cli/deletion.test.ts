import { describe, expect, test } from 'vitest';
import { page, problem, run, scriptedServer, volume } from './scripted-server.ts';

describe('deleting volumes', () => {
  test.each([
    ['deleted', null, 'deleted local/demo\n'],
    ['retained', null, 'removed local/demo; its data is retained on the store\n'],
    ['archived', '2026-01-09T03:04:05Z', 'moved local/demo to the trash until 2026-01-09 03:04 UTC\n'],
  ])('says what became of the volume: %s', async (outcome, expiresAt, said) => {
    const demo = volume('local', 'demo') as { id: string };
    await using server = await scriptedServer({
      'GET /v1/volumes/demo': [200, demo],
      [`DELETE /v1/volumes/${demo.id}`]: [200, { outcome, expiresAt }],
    });
    const { status, stdout } = await run(server, ['volume', 'delete', 'demo']);
    expect(stdout).toBe(said);
    expect(status).toBe(0);
  });

  test('deletes the other volumes if one cannot be deleted, and exits with the status of the first failure', async () => {
    const b = volume('local', 'b') as { id: string };
    await using server = await scriptedServer({
      'GET /v1/volumes/a': problem('not-found', 'there is no volume a', 'List them.', 404),
      'GET /v1/volumes/b': [200, b],
      [`DELETE /v1/volumes/${b.id}`]: [200, { outcome: 'deleted', expiresAt: null }],
      'GET /v1/volumes/c': problem('in-use', 'c is in use', 'Stop it.', 409),
    });
    expect(await run(server, ['volume', 'delete', 'a', 'b', 'c'])).toEqual({
      status: 4,
      stdout: 'deleted local/b\n',
      stderr: 'error: there is no volume a\naction: List them.\nerror: c is in use\naction: Stop it.\n',
    });
  });

  test('restore finds a volume by its old name, and refuses an ambiguous name', async () => {
    const trashed = (id: string, name: string): object => ({
      ...volume('local', name),
      id,
      deletedAt: '2026-01-02T03:04:05Z',
      expiresAt: '2026-01-09T03:04:05Z',
    });
    await using server = await scriptedServer({
      'GET /v1/trash': page(trashed('sv1-1', 'one'), trashed('sv1-2', 'two'), trashed('sv1-3', 'two')),
      'POST /v1/trash/sv1-1/restore': [200, volume('local', 'back')],
    });
    expect(await run(server, ['volume', 'restore', 'local/one', '--name', 'back'])).toMatchObject({
      status: 0,
      stdout: 'restored local/back\n',
    });
    expect(server.seen.at(-1)?.body).toEqual({ name: 'back' });
    expect(await run(server, ['volume', 'restore', 'two'])).toMatchObject({
      status: 5,
      stderr:
        'error: 2 volumes named two are in the trash\n' +
        'action: Specify the id: sv1-2 (local/two, deleted 2026-01-02 03:04 UTC), sv1-3 (local/two, deleted 2026-01-02 03:04 UTC)\n',
    });
    expect((await run(server, ['volume', 'restore', 'none'])).status).toBe(4);
  });

  test('the trash shows that an entry never expires', async () => {
    const one = { ...volume('local', 'one'), deletedAt: '2026-01-02T03:04:05Z', expiresAt: null };
    await using server = await scriptedServer({ 'GET /v1/trash': page(one) });
    const { stdout } = await run(server, ['volume', 'trash', 'list']);
    expect(stdout).toMatch(/^VOLUME +SIZE +DELETED +KEPT UNTIL +ID\nlocal\/one .* ago +never +sv1-/);
  });

  test('a lookup in the trash of a store that denies access fails, with a hint to ask the administrator', async () => {
    const denied = { message: "access to store 'data' is denied", action: 'Ask the administrator to grant access.' };
    await using server = await scriptedServer({
      'GET /v1/trash': [200, { items: [], next: null, unanswered: ['data'] }],
      'GET /v1/stores/data': [200, { name: 'data', problem: denied }],
    });
    expect(await run(server, ['volume', 'restore', 'one'])).toMatchObject({
      status: 10,
      stderr:
        "error: cannot search the trash for one: access to store 'data' is denied\n" +
        'action: Ask the administrator to grant access.\n',
    });
  });

  test('while a store cannot be used, a lookup in the trash reports neither "not found" nor a unique name', async () => {
    const one = { ...volume('local', 'one'), deletedAt: '2026-01-02T03:04:05Z', expiresAt: '2026-01-09T03:04:05Z' };
    const { id } = one as unknown as { id: string };
    await using server = await scriptedServer({
      'GET /v1/trash': [200, { items: [one], next: null, unanswered: ['data'] }],
      'GET /v1/trash?store=local': [200, { items: [one], next: null, unanswered: [] }],
      [`DELETE /v1/trash/${id}`]: [204],
    });
    const refused = (ref: string, action: string): object => ({
      status: 10,
      stderr: `error: cannot search the trash for ${ref}: store data is unavailable\naction: ${action}\n`,
    });
    const later = 'Repair the store and retry; find the cause with: stowage store check data';
    const unknown = 'sv1-00000000-0000-4000-8000-ffffffffffff';
    expect(await run(server, ['volume', 'trash', 'purge', 'none'])).toMatchObject(refused('none', later));
    expect(await run(server, ['volume', 'restore', unknown])).toMatchObject(refused(unknown, later));
    expect(await run(server, ['volume', 'trash', 'purge', 'one'])).toMatchObject(
      refused('one', 'To select the volume that was found, specify its store: local/one'),
    );
    const asked = ['GET /v1/trash', 'GET /v1/stores/data'];
    expect(server.seen.map(({ method, url }) => `${method} ${url}`)).toEqual([...asked, ...asked, ...asked]);
    expect((await run(server, ['volume', 'trash', 'purge', 'local/one'])).status).toBe(0);
    // A failed lookup of one does not keep the others from being purged.
    expect(await run(server, ['volume', 'trash', 'purge', 'none', 'local/one'])).toMatchObject({
      status: 10,
      stdout: 'permanently deleted local/one\n',
    });
    expect((await run(server, ['volume', 'trash', 'purge', id])).status).toBe(0);
  });
});
