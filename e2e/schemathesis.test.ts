import { execFile } from 'node:child_process';
import { chown, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs, toolPath } from '#testbed/needs.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { type Finished, program, type Stowage, startStowage } from './stowage.ts';

const config = join(import.meta.dirname, 'schemathesis.toml');

/**
 * Requests made up from /openapi.json against the running server, with every check that schemathesis has: no 5xx, no
 * answer that is not as documented, nothing accepted that the document forbids. The server runs as an ordinary user:
 * made-up stores and mount targets must not be able to do harm to the machine that tests it.
 */
describe.skipIf(needs('schemathesis', 'ordinary-user', 'linux'))('schemathesis', () => {
  let folder: string;
  let server: Stowage;
  let url: string;
  let token: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'stowage-schema-'));
    if (process.getuid?.() === 0) await chown(folder, ordinaryUid, ordinaryUid);
    const [command, args] = asOrdinaryUser([program]);
    server = await startStowage({ state: join(folder, 's'), listen: '127.0.0.1:0', command: [command, ...args] });
    url = /http:\/\/127\.0\.0\.1:\d+/.exec(server.output())?.[0] ?? '';
    token = (await readFile(join(folder, 's', 'token'), 'utf8')).trim();
    for (const name of ['one', 'two', 'three']) await server.api('POST', '/v1/volumes', { name, bytes: '1000' });
  });
  afterAll(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });

  async function check(...choice: readonly string[]): Promise<void> {
    const args = ['--config-file', config, 'run', `${url}/openapi.json`, '--header', `Authorization: Bearer ${token}`];
    const bounds = [
      '--checks',
      'all',
      '--max-examples',
      '40',
      '--seed',
      '1',
      '--workers',
      '1',
      '--request-timeout',
      '20',
    ];
    const { status, stdout } = await schemathesis([...args, ...bounds, '--no-color', ...choice]);
    expect(status, stdout).toBe(0);
    expect(stdout).toMatch(/^ {2}\d+ generated, \d+ passed/m);
    expect((await server.api('GET', '/readyz')).status).toBe(200);
  }

  async function schemathesis(args: readonly string[]): Promise<Finished> {
    const { promise, resolve } = Promise.withResolvers<Finished>();
    // In a folder of its own: it leaves its notes where it is started.
    execFile(toolPath('schemathesis'), args, { cwd: folder, timeout: 240_000 }, (error, stdout, stderr) =>
      resolve({ status: error === null ? 0 : Number(error.code ?? -1), stdout: `${stdout}${stderr}`, stderr }),
    );
    return await promise;
  }

  test('finds nothing wrong', { timeout: 300_000 }, async () => {
    // The event stream has no end. Revoking would take away the very token that the run uses.
    await check('--exclude-path', '/v1/events', '--exclude-operation-id', 'revokeToken');
  });

  test('finds nothing wrong with revoking tokens', { timeout: 120_000 }, async () => {
    await check('--include-operation-id', 'revokeToken', '--phases', 'coverage,fuzzing');
  });
});
