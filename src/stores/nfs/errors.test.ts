import { execFile } from 'node:child_process';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { expectError, refusal } from '#testing/expected-errors.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { mountProgram, mountVersion, nfsProgram } from '#wire/nfs3/index.ts';
import { createRpcServer, type Reply, type ServedProgram } from '#wire/rpc/server.ts';
import type { FileStore } from '../file-store/verbs.ts';

const repository = join(import.meta.dirname, '..', '..', '..');
type Options = Readonly<Record<string, string>>;

async function open(uri: string, options: Options, readOnly = false): Promise<FileStore> {
  const store = await openNfs({ uri, options, readOnly });
  onTestFinished(() => store.close());
  return store;
}

async function listenOnFreePort(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  return `${(server.address() as AddressInfo).port}`;
}

/** A script for a separate process whose network has no routes. */
const openWithoutRoutes = `
  import { createNfsStoreKind } from '#stores/nfs/kind.ts';
  import { silentLog } from '#base/log.ts';
  const config = { name: 'test', uri: process.argv[1], origin: 'api', policy: {}, options: {} };
  const scope = { signal: AbortSignal.timeout(15_000), log: silentLog() };
  const opening = createNfsStoreKind().open(config, { readOnly: false }, { instance: 'i', node: 'n' }, scope);
  const { code, reason, message, action } = await opening.catch((cause) => cause);
  console.log(JSON.stringify({ code, reason, message, action }));
`;

describe('a server that cannot be reached', () => {
  test('is reported if its name is unknown', async () => {
    const error = await refusal(open('nfs://nowhere.invalid/export', {}));
    expectError(error, {
      code: 'unavailable',
      reason: 'nfs-host-unknown',
      message:
        /^opening store test \(nowhere\.invalid:\/export\) failed: the host name nowhere\.invalid does not resolve$/,
      action: /the DNS of this host \(getent hosts nowhere\.invalid\); then: stowage store check test/,
    });
  });

  test('is reported if nothing listens on its port', async () => {
    const server = createServer();
    const port = await listenOnFreePort(server);
    await new Promise((resolve) => server.close(resolve));
    const error = await refusal(open('nfs://127.0.0.1/export', { port, retries: '0' }));
    expectError(error, {
      code: 'unavailable',
      reason: 'nfs-refused',
      message: new RegExp(`127\\.0\\.0\\.1:/export\\) failed: nothing listens on port ${port} of 127\\.0\\.0\\.1$`),
      action: /^Have the NFS server started, or correct the port/,
    });
  });

  test.skipIf(lacks('linux', 'root'))('is reported if there is no route', async () => {
    const nodeFlags = ['--disable-warning=ExperimentalWarning', '--input-type=module', '--eval', openWithoutRoutes];
    const args = ['--net', process.execPath, ...nodeFlags, 'nfs://198.18.0.1/export'];
    const { stdout } = await promisify(execFile)('unshare', args, { timeout: 20_000, cwd: repository });
    expectError(JSON.parse(stdout), {
      code: 'unavailable',
      reason: 'nfs-no-route',
      message: /198\.18\.0\.1:\/export\) failed: there is no route to 198\.18\.0\.1$/,
      action: /^Connect this host to the server's network, or set the option network to a network with a route/,
    });
  });

  test('is reported if it accepts connections and does not answer', async () => {
    const port = await listenOnFreePort(createServer((socket) => void socket.on('error', () => undefined)));
    const error = await refusal(open('nfs://127.0.0.1/export', { port, timeout: '300ms' }));
    expectError(error, {
      code: 'deadline',
      reason: 'nfs-timeout',
      message: /127\.0\.0\.1:\/export\) failed: 127\.0\.0\.1 did not answer in time/,
      action: /^Try again\. If it persists, check the server and the network in between: stowage store check test$/,
    });
  });

  test('is reported if it closes connections of this host', async () => {
    const { server } = await startOwnServer({ path: '/export', networks: ['10.0.0.0/8'] });
    const error = await refusal(open('nfs://127.0.0.1/export', { port: `${server.port}`, timeout: '500ms' }));
    expectError(error, {
      code: 'unavailable',
      reason: 'nfs-hangs-up',
      message: /127\.0\.0\.1:\/export\) failed: 127\.0\.0\.1 closes every connection from this host at once$/,
      action: /^Have the server's administrator allow this host's address/,
    });
  });

  test('is reported if it is not an NFS server', async () => {
    const http = createHttpServer().on('clientError', (_cause, socket) =>
      socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'),
    );
    const port = await listenOnFreePort(http);
    const error = await refusal(open('nfs://127.0.0.1/export', { port, timeout: '2s' }));
    expectError(error, {
      code: 'unavailable',
      reason: 'nfs-garbled',
      message: /127\.0\.0\.1:\/export\) failed: the replies of 127\.0\.0\.1 are not NFS version 3$/,
      action: /^Check the port in the store's URI/,
    });
  });
});

/** A program that replies to NULL and to these procedures. */
function programAnswering(
  number: number,
  version: number,
  replies: Readonly<Record<number, Reply>> = {},
): ServedProgram {
  const all = Object.entries({ 0: () => undefined, ...replies });
  const procedures = all.map(([key, reply]) => [Number(key), { name: key, handle: () => reply }] as const);
  return { number, version, procedures: new Map(procedures) };
}

/** An RPC server with these programs. Returns its port. */
const rpcServer = (...programs: readonly ServedProgram[]): Promise<string> =>
  listenOnFreePort(createRpcServer({ programs }));

describe('a server without a service', () => {
  test('is reported if it has no NFS version 3', async () => {
    const port = await rpcServer(programAnswering(nfsProgram, 4));
    expectError(await refusal(open('nfs://127.0.0.1/export', { port })), {
      code: 'unavailable',
      reason: 'nfs-no-service',
      message: /127\.0\.0\.1:\/export\) failed: 127\.0\.0\.1 has no NFS version 3 service on that port$/,
      action: /^Have NFS version 3 enabled on the server \(version 4 alone is not enough\)/,
    });
  });

  test('is reported if nothing listens on the port of MOUNT', async () => {
    const [port, mountport] = [await rpcServer(programAnswering(nfsProgram, 3)), await rpcServer()];
    expectError(await refusal(open('nfs://127.0.0.1/export', { port, mountport })), {
      code: 'unavailable',
      reason: 'nfs-no-mount-service',
      message: new RegExp(`127\\.0\\.0\\.1 speaks NFS, but has no MOUNT service on port ${mountport}$`),
      action: /^Correct mountport \(on the server: rpcinfo -p \| grep mountd\), or have the MOUNT service started/,
    });
  });

  test('is reported if its MOUNT service does not answer', async () => {
    const port = await rpcServer(programAnswering(nfsProgram, 3));
    const mountport = await listenOnFreePort(createServer((socket) => void socket.on('error', () => undefined)));
    expectError(await refusal(open('nfs://127.0.0.1/export', { port, mountport, timeout: '1s' })), {
      code: 'deadline',
      reason: 'nfs-mount-timeout',
      message: new RegExp(
        `127\\.0\\.0\\.1 speaks NFS, but its MOUNT service did not answer in time on port ${mountport}$`,
      ),
      action: /^Try again\. If it persists, have the firewall opened for that port, or set mountport to the right port/,
    });
  });
});

/** A MOUNT service that replies to every MNT with this status, and lists these exports. */
function mountProgramAnswering(status: number, ...exported: readonly string[]): ServedProgram {
  const mnt: Reply = (writer) => void writer.u32(status) as undefined;
  const list: Reply = (writer) => {
    for (const path of exported) writer.bool(true).string(path).bool(false);
    writer.bool(false);
    return undefined;
  };
  return programAnswering(mountProgram, mountVersion, { 1: mnt, 5: list });
}

describe('a mount that the server rejects', () => {
  test('is reported as denied if this host may not mount it', async () => {
    const port = await rpcServer(programAnswering(nfsProgram, 3), mountProgramAnswering(13, '/export'));
    expectError(await refusal(open('nfs://127.0.0.1/export/silver', { port, mountport: port })), {
      code: 'denied',
      reason: 'nfs-export-denied',
      message: /127\.0\.0\.1:\/export\/silver\) failed: 127\.0\.0\.1 does not let this host mount \/export\/silver$/,
      action: /^Have the server's administrator allow this host to mount \/export\/silver/,
    });
  });

  test('is reported as not exported if the export is not listed', async () => {
    const port = await rpcServer(programAnswering(nfsProgram, 3), mountProgramAnswering(13, '/gold', '/bronze'));
    expectError(await refusal(open('nfs://127.0.0.1/export', { port, mountport: port })), {
      code: 'unavailable',
      reason: 'nfs-export-withheld',
      message:
        /127\.0\.0\.1 denies access to \/export and does not list it: it is not exported, or not to this host; it exports \/gold, \/bronze$/,
      action: /^Correct the path in the store's URI, or have the server's administrator export it to this host/,
    });
  });

  test('is reported with the status of a failure of the server', async () => {
    const port = await rpcServer(programAnswering(nfsProgram, 3), mountProgramAnswering(10_006, '/export'));
    expectError(await refusal(open('nfs://127.0.0.1/export', { port, mountport: port })), {
      code: 'unavailable',
      reason: 'nfs-mount-refused',
      message: /the MOUNT service of 127\.0\.0\.1 answered SERVERFAULT for \/export$/,
      action: /^Check the server's log/,
    });
  });
});
