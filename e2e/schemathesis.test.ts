import { execFile } from 'node:child_process';
import { chown, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Compile } from 'typebox/schema';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { sized } from '#testing/sized.ts';
import { type Answer, type CommandResult, program, type Stowage, startStowage } from './stowage.ts';

const config = join(import.meta.dirname, 'schemathesis.toml');
/**
 * The check that a created resource is available. It doesn't know that DELETE /v1/volumes/{volume}/empty deletes a
 * volume, nor that a repeated Idempotency-Key returns the first answer again, even if that resource was deleted since.
 * It is excluded here because `--checks all` overrides the configuration file.
 */
const excludedCheck = 'ensure_resource_availability';

/**
 * Generates requests from /openapi.json against the running server, with every check of schemathesis: no 5xx, no answer that differs
 * from the document, no request accepted that the document forbids, and none refused that it allows, except for the
 * requests that schemathesis.toml lists. The requests differ in each run; a failure prints the STOWAGE_SEED that reproduces it.
 *
 * Runs once with the token of an administrator, and once with the token of a user of one store, which gives access to nothing else. Skips the event
 * stream, which doesn't end. The server runs as an ordinary user, because generated stores and mount targets could harm the
 * machine. An ordinary user cannot mount, so the tests below check mounts.
 */
describe.skipIf(lacks('schemathesis', 'ordinary-user', 'linux'))('schemathesis', () => {
  const examples = sized({
    usual: { admin: 12, revoking: 8, user: 10 },
    long: { admin: 40, revoking: 20, user: 30 },
  });
  const seed = process.env['STOWAGE_SEED'] ?? String(Math.floor(Math.random() * 2 ** 31));
  let folder: string;
  let server: Stowage;
  let url: string;
  let admin: string;
  let user: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'stowage-schema-'));
    if (process.getuid?.() === 0) await chown(folder, ordinaryUid, ordinaryUid);
    const [command, args] = asOrdinaryUser([program]);
    server = await startStowage({ state: join(folder, 's'), listen: '127.0.0.1:0', command: [command, ...args] });
    url = /http:\/\/127\.0\.0\.1:\d+/.exec(server.output())?.[0] ?? '';
    admin = (await readFile(join(folder, 's', 'token'), 'utf8')).trim();
    const { body } = await server.api('POST', '/v1/tokens', { name: 'scoped', role: 'user', stores: ['local'] });
    user = String(body['secret']);
    for (const name of ['one', 'two', 'three']) await server.api('POST', '/v1/volumes', { name, bytes: '1000' });
  });
  afterAll(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });

  async function check(token: string, examples: number, ...choice: readonly string[]): Promise<void> {
    const args = ['--config-file', config, 'run', `${url}/openapi.json`, '--header', `Authorization: Bearer ${token}`];
    const bounds = ['--max-examples', String(examples), '--workers', '1', '--request-timeout', '20'];
    const { status, stdout } = await schemathesis([
      ...args,
      ...bounds,
      '--checks',
      'all',
      '--exclude-checks',
      excludedCheck,
      '--seed',
      seed,
      '--no-color',
      ...choice,
    ]);
    expect(status, `with STOWAGE_SEED=${seed}: ${stdout}`).toBe(0);
    expect(stdout).toMatch(/^ {2}\d+ generated, \d+ passed/m);
    expect((await server.api('GET', '/readyz')).status).toBe(200);
  }

  async function schemathesis(args: readonly string[]): Promise<CommandResult> {
    const { promise, resolve } = Promise.withResolvers<CommandResult>();
    // Runs in a folder of its own, because schemathesis writes files to the working directory.
    execFile(toolPath('schemathesis'), args, { cwd: folder, timeout: 240_000 }, (error, stdout, stderr) =>
      resolve({ status: error === null ? 0 : Number(error.code ?? -1), stdout: `${stdout}${stderr}`, stderr }),
    );
    return await promise;
  }

  test('finds nothing wrong with the token of an administrator', { timeout: 300_000 }, async () => {
    // These operations would revoke the token of the run.
    await check(admin, examples.admin, '--exclude-path', '/v1/events', '--exclude-operation-id', 'revokeToken');
  });

  test('finds nothing wrong with the revocation of tokens', { timeout: 120_000 }, async () => {
    await check(admin, examples.revoking, '--include-operation-id', 'revokeToken', '--phases', 'coverage,fuzzing');
  });

  test('finds nothing wrong with the token of a user of one store', { timeout: 300_000 }, async () => {
    // access.test.ts checks that each administrator's route refuses other roles.
    await check(user, examples.user, '--exclude-path', '/v1/events', '--exclude-by', '/x-stowage-role == admin');
  });
});

/** Compares answers to real requests with the OpenAPI document. */
describe.skipIf(lacks('mount'))('the API’s mount routes', () => {
  let folder: string;
  let server: Stowage;
  // biome-ignore lint/suspicious/noExplicitAny: a parsed JSON document
  let document: any;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'stowage-schema-'));
    server = await startStowage({ state: join(folder, 's') });
    document = (await server.api('GET', '/openapi.json')).body;
    await server.api('POST', '/v1/volumes', { name: 'a' });
  });
  afterAll(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });

  async function callAsDocumented(
    status: number,
    method: string,
    path: string,
    body?: unknown,
    prefer?: string,
  ): Promise<Answer> {
    const route = path.replace(
      /\/(volumes|operations)\/[^/]+/,
      (_all, what) => `/${what}/{${what === 'volumes' ? 'volume' : 'id'}}`,
    );
    const { responses } = document.paths[route][method.toLowerCase()];
    const answer = await server.api(method, path, body, prefer === undefined ? {} : { prefer });
    expect(answer.status, JSON.stringify(answer.body)).toBe(status);
    const { content } = responses[status] ?? responses.default;
    if (content === undefined) expect(answer.body).toEqual({ text: '' });
    else {
      const [{ schema }] = Object.values<{ schema: object }>(content) as [{ schema: object }];
      const [, faults] = Compile({ ...schema, components: document.components }).Errors(answer.body);
      expect(faults, `${method} ${path}: ${JSON.stringify(answer.body)}`).toEqual([]);
    }
    return answer;
  }

  test('answer as documented, from the first mount to the last unmount', async () => {
    const target = join(folder, 'at');
    const { body } = await callAsDocumented(200, 'POST', '/v1/volumes/a/mount', { target });
    expect(body).toMatchObject({ name: 'local/a', target, readOnly: false, mounted: true });
    await callAsDocumented(200, 'POST', '/v1/volumes/a/mount', { target });
    await callAsDocumented(409, 'POST', '/v1/volumes/a/mount', { target, readOnly: true });
    await callAsDocumented(200, 'GET', '/v1/mounts');
    await callAsDocumented(200, 'GET', '/v1/volumes/a');
    await callAsDocumented(409, 'DELETE', '/v1/volumes/a');
    await callAsDocumented(204, 'POST', '/v1/volumes/a/unmount', { target });
    await callAsDocumented(204, 'POST', '/v1/volumes/a/unmount', { target });
    const { id } = (
      await callAsDocumented(202, 'POST', '/v1/volumes/a/mount', { target, readOnly: true }, 'respond-async')
    ).body;
    const readOperation = () => callAsDocumented(200, 'GET', `/v1/operations/${id}`);
    await expect
      .poll(async () => (await readOperation()).body)
      .toMatchObject({ state: 'done', result: { readOnly: true } });
    await callAsDocumented(202, 'POST', '/v1/volumes/a/unmount', { target }, 'respond-async');
    await expect.poll(async () => (await callAsDocumented(200, 'GET', '/v1/mounts')).body['items']).toEqual([]);
  });
});
