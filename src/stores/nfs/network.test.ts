import { type ChildProcess, execFileSync, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type StowageError, stowageError } from '#core/errors.ts';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser } from '#testbed/ordinary-user.ts';
import { scope } from '#testing/contracts/store.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type FarNetwork, makeFarNetwork, ownFiles } from '#testing/network-namespaces.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { suspend } from '#testing/suspend.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createNfsClient, createRpcClient, mnt } from '#wire/nfs3/index.ts';
import type { FileStore, FileStoreKind } from '../file-store/verbs.ts';
import { createNfsStoreKind } from './kind.ts';
import { createEnterNetwork, type Network } from './network.ts';
import { maxPendingQuestions } from './network-messages.ts';

const refusal = (work: Promise<unknown>): Promise<StowageError> =>
  work.then(() => Promise.reject(new Error('it was not refused')), stowageError);

async function namesIn(store: FileStore): Promise<readonly string[]> {
  const names: string[] = [];
  for await (const { name } of store.list(scope)) names.push(name);
  return names.sort();
}

describe.skipIf(lacks('root', 'netns'))('a store in another network', () => {
  let farNetwork: FarNetwork;

  beforeAll(async () => {
    farNetwork = await makeFarNetwork();
  });
  afterAll(() => farNetwork[Symbol.asyncDispose]());

  const serverOptions = () => ({ port: `${farNetwork.port}`, mountport: `${farNetwork.port}`, timeout: '5s' });

  async function open(
    more: Readonly<Record<string, string>> = {},
    kind?: FileStoreKind,
    host = farNetwork.host,
  ): Promise<FileStore> {
    const options = { ...serverOptions(), network: `netns:${farNetwork.name}`, ...more };
    const store = await openNfs({ uri: `nfs://${host}/export`, options, ...(kind === undefined ? {} : { kind }) });
    onTestFinished(() => store.close());
    return store;
  }

  async function enter(): Promise<Network> {
    const network = await createEnterNetwork(systemClock())(`netns:${farNetwork.name}`, scope.signal);
    onTestFinished(() => network[Symbol.dispose]());
    return network;
  }

  test('many large reads at once are all answered', async () => {
    await writeFile(join(farNetwork.exported, 'large'), Buffer.alloc(1024 * 1024, 7));
    const clock = systemClock();
    const { connect } = await enter();
    using rpc = createRpcClient({
      clock,
      connect,
      addresses: [farNetwork],
      identity: { uid: 0, gid: 0, groups: [], machine: '' },
    });
    const nfs = createNfsClient(rpc, clock);
    const { handle: root } = await rpc.call(mnt, '/export');
    const { handle } = await nfs.lookup(root, 'large');
    // All reads at once: more data than the server sends before it checks whether the socket is writable.
    const reads = Array.from({ length: 64 }, () =>
      nfs.read(handle, 0, Buffer.alloc(1024 * 1024), { deadlineMs: 10_000 }),
    );
    expect((await Promise.all(reads)).every(({ count }) => count === 1024 * 1024)).toBe(true);
    await nfs.remove(root, 'large');
  });

  test('volumes are created, listed and deleted, also after a restart of the server', async () => {
    const store = await open();
    const { id, name } = await store.create(volumeSpec('photos'), scope);
    expect(await namesIn(store)).toEqual(['photos']);
    await farNetwork.restart();
    await store.create(volumeSpec('letters'), scope);
    expect(await namesIn(store)).toEqual(['letters', 'photos']);
    await store.delete({ id, name }, scope);
    expect(await namesIn(store)).toEqual(['letters']);
    expect(readdirSync(farNetwork.exported).filter((file) => !file.startsWith('.'))).toEqual([
      'letters',
      'letters.meta',
    ]);
    const { steps } = await store.check(scope);
    expect(steps[0]).toMatchObject({
      step: 'network',
      ok: true,
      detail: `connections start in netns:${farNetwork.name}`,
    });
    expect(steps.filter(({ ok }) => !ok)).toEqual([]);
  });

  test('a namespace can be given by its path', async () => {
    const store = await open({ network: `/run/netns/${farNetwork.name}` });
    const [pid] = await farNetwork.hasPids(1);
    const another = await open({ network: `/proc/${pid}/ns/net` });
    expect(await namesIn(another)).toEqual(await namesIn(store));
  });

  test('stores share one process, which ends with the last of them', async () => {
    await farNetwork.hasPids(0);
    const kind = createNfsStoreKind();
    const [one, two] = [await open({}, kind), await open({ nconnect: '4' }, kind)];
    const [pid] = await farNetwork.hasPids(1);
    await one.close();
    await one.close();
    expect(await farNetwork.pids()).toEqual([pid]);
    await two.create(volumeSpec('kept'), scope);
    await two.close();
    await farNetwork.hasPids(0);
  });

  test('a process that dies is replaced when the next connection is made', async () => {
    const store = await open();
    const [pid = 0] = await farNetwork.hasPids(1);
    process.kill(pid, 'SIGKILL');
    await farNetwork.hasPids(0);
    // Existing connections stay open.
    await store.create(volumeSpec('before'), scope);
    expect(await farNetwork.pids()).toEqual([]);
    await farNetwork.restart();
    await store.create(volumeSpec('after'), scope);
    expect(await farNetwork.pids()).toHaveLength(1);
  });

  test('a namespace that is recreated under its name is entered again', async () => {
    const network = await enter();
    const [pid = 0] = await farNetwork.hasPids(1);
    await farNetwork.removeEnd();
    await farNetwork.makeEnd();
    const address = { host: farNetwork.host, port: farNetwork.port };
    const socket = await network.connect({ address, localPort: undefined, signal: AbortSignal.timeout(10_000) });
    socket.destroy();
    expect(await farNetwork.hasPids(1)).not.toContain(pid);
    await expect.poll(() => existsSync(`/proc/${pid}/fd/0`)).toBe(false);
  });

  test('connections made in a namespace end when another one gets its name', async () => {
    const clock = createFakeClock();
    const network = await createEnterNetwork(clock)(`netns:${farNetwork.name}`, scope.signal);
    onTestFinished(() => network[Symbol.dispose]());
    const connect = (): Promise<Socket> => network.connect({ address: farNetwork, signal: scope.signal });
    const socket = await connect();
    onTestFinished(() => void socket.destroy());
    const ended = once(socket, 'close');
    clock.advance(5_000);
    // The namespace is unchanged.
    await network.lookup(farNetwork.host, scope.signal);
    expect(socket.destroyed).toBe(false);
    await farNetwork.removeEnd();
    clock.advance(5_000);
    // Connections also stay open while no namespace has the name.
    await expect(network.lookup(farNetwork.host, scope.signal)).rejects.toMatchObject({
      reason: 'nfs-network-missing',
    });
    expect(socket.destroyed).toBe(false);
    await farNetwork.makeEnd();
    await expect
      .poll(() => {
        clock.advance(5_000);
        return socket.destroyed;
      })
      .toBe(true);
    await ended;
    (await connect()).destroy();
  });

  test('names are resolved in the namespace', async () => {
    await using _files = await ownFiles(farNetwork.name, { hosts: `${farNetwork.host} filer.stowage.invalid\n` });
    const store = await open({}, undefined, 'filer.stowage.invalid');
    await store.create(volumeSpec('named'), scope);
    const { code, reason } = await refusal(open({}, undefined, 'nobody.stowage.invalid'));
    expect([code, reason]).toEqual(['unavailable', 'nfs-host-unknown']);
  });

  test('connections come from privileged ports if the server requires them', async () => {
    await farNetwork.restart({ privilegedPorts: true });
    onTestFinished(() => farNetwork.restart());
    expect((await refusal(open())).code).toBe('denied');
    const store = await open({ sourceport: 'privileged' });
    await store.create(volumeSpec('privileged'), scope);
  });

  test.skipIf(lacks('openssl'))('connections are encrypted if tls is set', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-far-tls-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'ca.pem')];
    const keyOptions = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    const subject = ['-subj', '/CN=server', '-addext', `subjectAltName=IP:${farNetwork.host}`];
    execFileSync('openssl', [...keyOptions, '-keyout', key, '-out', cert, ...subject], { stdio: 'pipe' });
    await farNetwork.restart({ tls: { key, cert } });
    onTestFinished(() => farNetwork.restart());
    expect((await refusal(open())).code).toBe('denied');
    const store = await open({ tls: folder });
    await store.create(volumeSpec('secret'), scope);
  });

  test('errors of connections in the namespace are reported', async () => {
    const { reason, message } = await refusal(open({ port: '9', retries: '0' }));
    expect(reason).toBe('nfs-refused');
    expect(message).toContain(`nothing listens on that port of ${farNetwork.host}`);
    const noRoute = await refusal(open({ retries: '0' }, undefined, '203.0.113.1'));
    expect(noRoute.reason).toBe('nfs-no-route');
    expect(noRoute.message).toContain(`there is no route to 203.0.113.1 from netns:${farNetwork.name}`);
    expect(noRoute.action).toMatch(`Connect the network netns:${farNetwork.name} to the server's; then:`);
  });

  test('a call to a server that never answers ends at its deadline', async () => {
    expect((await refusal(open({ timeout: '1s', retries: '0' }, undefined, farNetwork.silent))).reason).toBe(
      'nfs-timeout',
    );
  });

  test('a connection that no caller waits for is abandoned', async () => {
    const network = await enter();
    const address = { host: farNetwork.silent, port: 2049 };
    const connecting = Array.from({ length: maxPendingQuestions + 1 }, () => {
      const signal = AbortSignal.timeout(2_000);
      return network.connect({ address, localPort: undefined, signal }).catch((cause: unknown) => String(cause));
    });
    const ends = await Promise.all(connecting);
    expect(ends.filter((end) => end === 'Error: too many connections are being made at once')).toHaveLength(1);
    expect(ends.filter((end) => String(end).startsWith('TimeoutError'))).toHaveLength(maxPendingQuestions);
    // The process in the namespace has dropped the connections, too. Otherwise it would refuse another one.
    const reachable = { address: { host: farNetwork.host, port: farNetwork.port }, localPort: undefined };
    (await network.connect({ ...reachable, signal: AbortSignal.timeout(5_000) })).destroy();
  });

  test('a call ends at its deadline if the process is stopped', async () => {
    const network = await enter();
    const [pid = 0] = await farNetwork.hasPids(1);
    await suspend(pid);
    const address = { host: farNetwork.host, port: farNetwork.port };
    const connecting = network.connect({ address, localPort: undefined, signal: AbortSignal.timeout(300) });
    await expect(connecting).rejects.toThrow('timeout');
    network[Symbol.dispose]();
    await farNetwork.hasPids(0);
  });

  test('the process ends with its parent, however that ends', async () => {
    await farNetwork.hasPids(0);
    const parentProcess =
      startProgram(`await createEnterNetwork(systemClock())('netns:${farNetwork.name}', new AbortController().signal);
      console.log('entered');`);
    await once(parentProcess.stdout ?? parentProcess, 'data');
    expect(await farNetwork.pids()).toHaveLength(1);
    parentProcess.kill('SIGKILL');
    await farNetwork.hasPids(0);
  });

  test('a namespace that does not exist is reported', async () => {
    const store = await open();
    await farNetwork.removeEnd();
    onTestFinished(() => farNetwork.makeEnd());
    const { code, reason, message, action } = await refusal(open());
    expect([code, reason]).toEqual(['unavailable', 'nfs-network-missing']);
    expect(message).toBe(
      `the network netns:${farNetwork.name} does not exist: there is no /run/netns/${farNetwork.name}`,
    );
    expect(action).toContain('ip netns add');
    const { ok, steps } = await store.check(scope);
    expect([ok, steps.map(({ step }) => step)]).toEqual([false, ['network']]);
  });

  test('a file that is not a namespace is reported', async () => {
    const { code, reason, message } = await refusal(open({ network: '/etc/hosts' }));
    expect([code, reason]).toEqual(['unavailable', 'nfs-network-unusable']);
    expect(message).toContain('the network /etc/hosts cannot be used: nsenter:');
  });

  test.skipIf(lacks('ordinary-user'))(
    'a process that may not enter the namespace gets an error with the required capability',
    async () => {
      const parentProcess = startProgram(
        `const signal = new AbortController().signal;
       const told = await createEnterNetwork(systemClock())('netns:${farNetwork.name}', signal).catch((e) => e);
       console.log(JSON.stringify([told.code, told.reason, told.action]));`,
        asOrdinaryUser,
      );
      const [text] = (await once(parentProcess.stdout ?? parentProcess, 'data')) as [Buffer];
      const action = 'Run Stowage as root, with CAP_SYS_ADMIN; or remove the option network.';
      expect(JSON.parse(text.toString())).toEqual(['denied', 'nfs-network-denied', action]);
    },
  );
});

/** Starts a separate program that can enter namespaces. */
function startProgram(
  text: string,
  wrapCommand: typeof asOrdinaryUser = ([file = '', ...args]) => [file, args],
): ChildProcess {
  const imports = ['base/clock.ts', 'stores/nfs/network.ts'].map((file, i) => {
    return `import { ${['systemClock', 'createEnterNetwork'][i]} } from '#${file}';`;
  });
  const nodeFlags = ['--input-type=module', '--disable-warning=ExperimentalWarning', '--eval'];
  const [file, args] = wrapCommand([process.execPath, ...nodeFlags, [...imports, text].join('\n')]);
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  onTestFinished(() => void child.kill('SIGKILL'));
  return child;
}

describe('the process in the namespace', () => {
  async function startChild(): Promise<ChildProcess> {
    const child = fork(join(import.meta.dirname, 'network-child.ts'), {
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    onTestFinished(() => void child.kill('SIGKILL'));
    expect((await once(child, 'message'))[0]).toEqual({ kind: 'ready' });
    return child;
  }

  test('does not answer invalid messages', async () => {
    const child = await startChild();
    const answers: unknown[] = [];
    child.on('message', (message) => answers.push(message));
    for (const message of [{}, { id: 1, ask: 'open' }, { id: 1, ask: 'lookup' }, 'text']) child.send(message);
    child.send({ id: 2, ask: 'lookup', host: '127.0.0.1' });
    await once(child, 'message');
    expect(answers).toEqual([{ kind: 'addresses', id: 2, addresses: ['127.0.0.1'] }]);
  });

  test('ends when its channel is closed', async () => {
    const child = await startChild();
    child.disconnect();
    expect((await once(child, 'exit'))[0]).toBe(0);
  });
});
