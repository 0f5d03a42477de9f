import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createFakeClock, type FakeClock } from '#testing/fakes/clock.ts';
import type { KubeAccess } from './access.ts';
import { fromKubeconfig, inCluster } from './config.ts';
import { KubeError } from './errors.ts';

const { signal } = new AbortController();
let folder: string;
let clock: FakeClock;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-kubeconfig-'));
  clock = createFakeClock();
});
afterEach(() => rmSync(folder, { recursive: true }));

const writeFile = (name: string, text: string): void => writeFileSync(join(folder, name), text);
const base64 = (text: string): string => Buffer.from(text).toString('base64');

async function failure(work: Promise<unknown>): Promise<KubeError> {
  const thrown: unknown = await work.then(
    () => 'it did not fail',
    (error: unknown) => error,
  );
  if (!(thrown instanceof KubeError)) throw new Error('not a KubeError', { cause: thrown });
  return thrown;
}

describe('access from within a pod', () => {
  const env = { KUBERNETES_SERVICE_HOST: '10.96.0.1', KUBERNETES_SERVICE_PORT: '443' };
  beforeEach(() => {
    writeFile('namespace', 'stowage\n');
    writeFile('token', 'first\n');
    writeFile('ca.crt', 'authority');
  });

  test("uses the service account's files", async () => {
    const access = await inCluster({ env, clock, folder });
    expect(access.server.href).toBe('https://10.96.0.1/');
    expect(access.namespace).toBe('stowage');
    expect(await access.identity(signal)).toEqual({ authorization: 'Bearer first', tls: { ca: 'authority' } });
  });

  test('puts an IPv6 address in brackets', async () => {
    const access = await inCluster({ env: { ...env, KUBERNETES_SERVICE_HOST: 'fd00::1' }, clock, folder });
    expect(access.server.host).toBe('[fd00::1]');
  });

  test('picks up a changed token soon, and returns the same identity object while the token does not change', async () => {
    const access = await inCluster({ env, clock, folder });
    const first = await access.identity(signal);
    clock.advance(10_000);
    expect(await access.identity(signal)).toBe(first);
    writeFile('token', 'second');
    clock.advance(5_000);
    expect(await access.identity(signal)).toMatchObject({ authorization: 'Bearer second' });
  });

  test('reads a rejected token again at once', async () => {
    const access = await inCluster({ env, clock, folder });
    const first = await access.identity(signal);
    expect(await access.identity(signal, first)).toBe(first);
    writeFile('token', 'second');
    expect(await access.identity(signal, first)).toMatchObject({ authorization: 'Bearer second' });
  });

  test('keeps the last token while its file is being replaced', async () => {
    const access = await inCluster({ env, clock, folder });
    const first = await access.identity(signal);
    rmSync(join(folder, 'token'));
    clock.advance(10_000);
    expect(await access.identity(signal)).toBe(first);
  });

  test('is an error outside of a pod', async () => {
    expect(await failure(inCluster({ env: {}, clock, folder }))).toMatchObject({
      failure: 'misconfigured',
      message: 'this is not a pod of Kubernetes: KUBERNETES_SERVICE_HOST and _PORT are not set',
    });
    rmSync(join(folder, 'namespace'));
    expect((await failure(inCluster({ env, clock, folder }))).message).toBe(
      `${join(folder, 'namespace')} cannot be read: the pod's service account has no token mounted`,
    );
  });
});

function kubeconfig(user: object, cluster: object = { server: 'https://api.example:6443' }, context: object = {}) {
  return {
    clusters: [
      { name: 'other', cluster: { server: 'https://other' } },
      { name: 'c', cluster },
    ],
    users: [{ name: 'u', user }],
    contexts: [
      { name: 'k', context: { cluster: 'c', user: 'u', ...context } },
      { name: 'elsewhere', context: { cluster: 'other', namespace: 'far' } },
    ],
    'current-context': 'k',
  };
}
const openKubeconfig = (config: unknown, context?: string): Promise<KubeAccess> =>
  fromKubeconfig({ config, folder, clock, env: { PATH: process.env['PATH'] }, context });

describe('access by a kubeconfig', () => {
  test('supports a token', async () => {
    const access = await openKubeconfig(kubeconfig({ token: 't' }, undefined, { namespace: 'mine' }));
    expect([access.server.host, access.namespace]).toEqual(['api.example:6443', 'mine']);
    expect(await access.identity(signal)).toEqual({ authorization: 'Bearer t', tls: {} });
  });

  test('supports certificates in the kubeconfig and in other files', async () => {
    writeFile('ca.crt', 'authority');
    const inlineCertificate = { 'client-certificate-data': base64('cert'), 'client-key-data': base64('key') };
    const server = { server: 'https://a', 'tls-server-name': 'kubernetes', 'certificate-authority': 'ca.crt' };
    expect(await (await openKubeconfig(kubeconfig(inlineCertificate, server))).identity(signal)).toEqual({
      tls: { ca: 'authority', cert: 'cert', key: 'key', servername: 'kubernetes' },
    });
  });

  test('supports a token file, which takes precedence over a token, and a password', async () => {
    writeFile('t', 'from-file\n');
    const both = await openKubeconfig(kubeconfig({ token: 't', tokenFile: 't' }));
    expect(await both.identity(signal)).toMatchObject({ authorization: 'Bearer from-file' });
    const basic = await openKubeconfig(kubeconfig({ username: 'a', password: 'b' }));
    expect(await basic.identity(signal)).toMatchObject({ authorization: `Basic ${base64('a:b')}` });
  });

  test('turns off verification with insecure-skip-tls-verify', async () => {
    const access = await openKubeconfig(kubeconfig({}, { server: 'https://a', 'insecure-skip-tls-verify': true }));
    expect(await access.identity(signal)).toEqual({ tls: { rejectUnauthorized: false } });
  });

  test('supports a context other than the current one', async () => {
    const access = await openKubeconfig(kubeconfig({}), 'elsewhere');
    expect([access.server.host, access.namespace]).toEqual(['other', 'far']);
  });

  test.each([
    ['nothing', undefined, 'the kubeconfig is not a map'],
    ['no context', { ...kubeconfig({}), 'current-context': '' }, 'the kubeconfig has no current-context: name one'],
    ['a context that is missing', { 'current-context': 'x' }, 'the kubeconfig has no context “x”'],
    ['a user that is missing', kubeconfig({}, undefined, { user: 'x' }), 'the kubeconfig has no user “x”'],
    ['a server that is missing', kubeconfig({}, {}), 'the cluster “c” of the kubeconfig names no server'],
    [
      'a server that is not an https URL',
      kubeconfig({}, { server: 'ftp://secret@a' }),
      'the kubeconfig names a server that is not an https:// address',
    ],
    [
      'a proxy',
      kubeconfig({}, { server: 'https://a', 'proxy-url': 'http://user:secret@p' }),
      'the cluster “c” of the kubeconfig has a proxy-url, and proxies are not supported: name a server that is reached directly',
    ],
    [
      'a certificate authority and no verification',
      kubeconfig({}, { server: 'https://a', 'certificate-authority': 'x', 'insecure-skip-tls-verify': true }),
      'the cluster “c” of the kubeconfig has both a certificate authority and insecure-skip-tls-verify: remove one of them',
    ],
    ['impersonation', kubeconfig({ as: 'root' }), 'the user “u” of the kubeconfig has “as”, which is not supported'],
    ['a token that is not a text', kubeconfig({ token: 7 }), '“token” in the user “u” of the kubeconfig is not a text'],
  ])('is an error with %s', async (_what, config, message) => {
    expect(await failure(openKubeconfig(config))).toMatchObject({ failure: 'misconfigured', message });
  });

  test('is an error if a file is missing', async () => {
    const access = await openKubeconfig(kubeconfig({ tokenFile: 'nowhere' }));
    expect((await failure(access.identity(signal))).message).toBe(`${join(folder, 'nowhere')} cannot be read`);
  });
});

describe('a credential plugin', () => {
  const apiVersion = 'client.authentication.k8s.io/v1';
  /** Creates a plugin that counts its runs and prints `answer`. */
  function plugin(answer: string, more: object = {}, script = ''): object {
    const path = join(folder, 'plugin.sh');
    writeFileSync(join(folder, 'answer'), answer);
    writeFileSync(path, `#!/bin/sh\necho run >> ${folder}/runs\n${script}\ncat ${folder}/answer\n`);
    chmodSync(path, 0o755);
    return kubeconfig({ exec: { apiVersion, command: './plugin.sh', args: [], ...more } });
  }
  const credential = (status: object): string => JSON.stringify({ apiVersion, kind: 'ExecCredential', status });
  const runs = (): number => readFileSync(join(folder, 'runs'), 'utf8').split('\n').length - 1;

  test('is run once for all callers until its credential expires', async () => {
    const expirationTimestamp = new Date(clock.now() + 60_000).toISOString();
    const access = await openKubeconfig(plugin(credential({ token: 'made', expirationTimestamp })));
    const identities = await Promise.all([1, 2, 3].map(() => access.identity(signal)));
    expect(identities.map(({ authorization }) => authorization)).toEqual(['Bearer made', 'Bearer made', 'Bearer made']);
    clock.advance(49_000);
    await access.identity(signal);
    expect(runs()).toBe(1);
    clock.advance(1_000);
    await access.identity(signal);
    expect(runs()).toBe(2);
  });

  test('is run again when its credential was rejected', async () => {
    const access = await openKubeconfig(plugin(credential({ token: 'made' })));
    const first = await access.identity(signal);
    writeFile('answer', credential({ token: 'newer' }));
    expect(await access.identity(signal, first)).toMatchObject({ authorization: 'Bearer newer' });
    expect(runs()).toBe(2);
  });

  test('gets its arguments, its environment and the requested cluster information', async () => {
    const script = `printf '%s|' "$@" "$EXTRA" > ${folder}/got; printf '%s' "$KUBERNETES_EXEC_INFO" > ${folder}/info`;
    const more = {
      args: ['a b', '$(id)', ';'],
      env: [{ name: 'EXTRA', value: 'x y' }],
      provideClusterInfo: true,
    };
    await (await openKubeconfig(plugin(credential({ token: 't' }), more, script))).identity(signal);
    expect(readFileSync(join(folder, 'got'), 'utf8')).toBe('a b|$(id)|;|x y|');
    expect(JSON.parse(readFileSync(join(folder, 'info'), 'utf8'))).toEqual({
      apiVersion,
      kind: 'ExecCredential',
      spec: { interactive: false, cluster: { server: 'https://api.example:6443' } },
    });
  });

  test('may return certificates', async () => {
    const credentials = credential({ clientCertificateData: 'cert', clientKeyData: 'key' });
    expect(await (await openKubeconfig(plugin(credentials))).identity(signal)).toEqual({
      tls: { cert: 'cert', key: 'key' },
    });
  });

  test.each([
    [
      'text that is not JSON',
      'secret-word',
      'did not answer with an ExecCredential of client.authentication.k8s.io/v1',
    ],
    [
      'neither token nor certificate',
      credential({ x: 'secret-word' }),
      'answered with neither a token nor a certificate',
    ],
    [
      'a key without a certificate',
      credential({ clientKeyData: 'secret-word' }),
      'answered with only one of certificate and key',
    ],
    [
      'an invalid expiry time',
      credential({ token: 'secret-word', expirationTimestamp: 'soon' }),
      'answered with an expirationTimestamp that is no time',
    ],
  ])('that returns %s causes an error that does not contain its output', async (_what, answer, message) => {
    const error = await failure((await openKubeconfig(plugin(answer))).identity(signal));
    expect(error.message).toBe(`the credential plugin ${join(folder, 'plugin.sh')} ${message}`);
    expect(inspect(error, { depth: null, showHidden: true })).not.toContain('secret-word');
  });

  test('that fails causes an error without its arguments and output', async () => {
    const config = plugin('', { args: ['secret-word'] }, 'echo secret-word; echo secret-word >&2; exit 3');
    const error = await failure((await openKubeconfig(config)).identity(signal));
    const name = join(folder, 'plugin.sh');
    expect(error.message).toBe(`the credential plugin ${name} failed with status 3: run it to see why`);
    expect(inspect(error, { depth: null, showHidden: true })).not.toContain('secret-word');
  });

  test('that is not installed causes an error with its install hint', async () => {
    const exec = { apiVersion, command: 'no-such-plugin', installHint: 'Get it from example.com.' };
    const error = await failure((await openKubeconfig(kubeconfig({ exec }))).identity(signal));
    expect(error.message).toBe('the credential plugin no-such-plugin is not installed. Get it from example.com.');
  });

  test.each(['in time', 'because the caller aborted'])('that does not exit is killed %s', async (why) => {
    const script = `trap '' TERM; echo $$ > ${folder}/pid.new; mv ${folder}/pid.new ${folder}/pid; while [ -e ${folder} ]; do :; done`;
    const access = await openKubeconfig(plugin('', {}, script));
    const stop = new AbortController();
    const pendingIdentity = failure(access.identity(stop.signal));
    await expect.poll(() => existsSync(join(folder, 'pid'))).toBe(true);
    const pid = readFileSync(join(folder, 'pid'), 'utf8').trim();
    if (why === 'in time') clock.advance(60_000);
    else stop.abort();
    expect(await pendingIdentity).toMatchObject({ failure: why === 'in time' ? 'deadline' : 'canceled' });
    await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
  });

  test('whose child keeps stdout open is not waited for', async () => {
    const countPipes = () => process.getActiveResourcesInfo().filter((name) => name === 'PipeWrap').length;
    const pipesBefore = countPipes();
    const script = `sleep 600 & echo $! > ${folder}/pid.new; mv ${folder}/pid.new ${folder}/pid; wait`;
    const access = await openKubeconfig(plugin('', {}, script));
    const pendingIdentity = failure(access.identity(signal));
    await expect.poll(() => existsSync(join(folder, 'pid'))).toBe(true);
    const pid = Number(readFileSync(join(folder, 'pid'), 'utf8'));
    onTestFinished(() => void process.kill(pid));
    clock.advance(60_000);
    expect(await pendingIdentity).toMatchObject({ failure: 'deadline' });
    await expect.poll(countPipes).toBe(pipesBefore);
  });

  test('that prints too much is killed', async () => {
    const access = await openKubeconfig(plugin('', {}, 'exec cat /dev/zero'));
    expect((await failure(access.identity(signal))).message).toBe(
      `the credential plugin ${join(folder, 'plugin.sh')} does not stop printing`,
    );
  });

  test('that requires interaction or another API version is refused', async () => {
    expect((await failure(openKubeconfig(plugin('', { interactiveMode: 'Always' })))).message).toBe(
      '“exec” of the user “u” of the kubeconfig requires interaction, which is not possible here',
    );
    expect((await failure(openKubeconfig(plugin('', { apiVersion: 'v1alpha1' })))).message).toBe(
      '“exec” of the user “u” of the kubeconfig wants another apiVersion than client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1',
    );
  });
});
