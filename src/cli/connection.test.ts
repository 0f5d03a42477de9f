import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { page, run, scriptedServer } from './scripted-server.ts';

describe('the token', () => {
  test('is read from a file, with a warning if everyone can read it, and is never sent over the socket', async () => {
    await using server = await scriptedServer({ 'GET /v1/stores': page() });
    const folder = await mkdtemp(join(tmpdir(), 'stowage-cli-'));
    const file = join(folder, 'token');
    try {
      await writeFile(file, 's3cret\n');
      await chmod(file, 0o644);
      const seen: (string | undefined)[] = [];
      const tcp = createServer((request, answer) => {
        seen.push(request.headers.authorization);
        answer.end('{"items":[],"next":null}');
      });
      const { promise, resolve } = Promise.withResolvers<void>();
      tcp.listen(0, '127.0.0.1', resolve);
      await promise;
      const address = tcp.address();
      const url = `http://127.0.0.1:${typeof address === 'object' ? address?.port : 0}`;
      const open = await run(undefined, ['store', 'list', '-q', '--url', url, '--token-file', file]);
      expect(open).toEqual({
        status: 0,
        stdout: '',
        stderr: `warning: ${file} is readable by every user; run: chmod 600 ${file}\n`,
      });
      await chmod(file, 0o600);
      expect(
        (await run(undefined, ['store', 'list', '-q', '--token-file', file], { env: { STOWAGE_URL: url } })).stderr,
      ).toBe('');
      expect(
        (await run(undefined, ['store', 'list', '-q'], { env: { STOWAGE_URL: url, STOWAGE_TOKEN: 'other' } })).status,
      ).toBe(0);
      expect(seen).toEqual(['Bearer s3cret', 'Bearer s3cret', 'Bearer other']);
      tcp.close();
      tcp.closeAllConnections();
      await run(server, ['store', 'list'], { env: { STOWAGE_SOCKET: server.socket, STOWAGE_TOKEN: 'x' } });
      expect(server.seen[0]?.headers.authorization).toBeUndefined();
      expect(await run(undefined, ['store', 'list', '--url', url, '--token-file', `${file}.none`])).toMatchObject({
        status: 2,
      });
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});
