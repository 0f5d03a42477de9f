import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { startDaemon } from '#testbed/daemon.ts';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { addresses } from '#testbed/kubernetes/network.ts';
import { certificate } from '#testing/certificate.ts';
import { program } from '../stowage.ts';

/** An NFS server that nodes can reach and that requires client certificates. */
export interface PrivateFiler extends AsyncDisposable {
  /** The spec of a Store on this server. */
  readonly spec: { readonly uri: string; readonly options: Readonly<Record<string, string>> };
  readonly secretName: string;
  /** The certificates, as a Secret of that namespace. */
  secret(namespace: string): object;
  /** A part of the private key, to search for. */
  readonly keyFragment: string;
  /** The contents of the files with that name in all volumes. */
  contentsOf(name: string): Promise<readonly string[]>;
}

const port = 20_500;
const secretName = 'filer.tls';

export async function startPrivateFiler(cluster: Cluster, signal: AbortSignal): Promise<PrivateFiler> {
  const folder = join(cluster.folder, 'private-filer');
  const exported = join(folder, 'exported');
  await mkdir(exported, { recursive: true });
  const [serverCredential, clientCredential] = [certificate('filer', addresses.controlPlane), certificate('caller')];
  const files = {
    '--tls-cert': serverCredential.cert,
    '--tls-key': serverCredential.key,
    '--tls-ca': clientCredential.cert,
  };
  const tls: string[] = [];
  for (const [flag, text] of Object.entries(files)) {
    const file = join(folder, flag.slice(2));
    await writeFile(file, text, { mode: 0o600 });
    tls.push(flag, file);
  }
  const listenArgs = ['--host', addresses.controlPlane, '--port', `${port}`, '--allow', '10.0.0.0/8'];
  const daemon = await startDaemon({
    command: [
      ...cluster.network.inside,
      program,
      'nfs',
      'serve',
      exported,
      '--state',
      join(folder, 'state'),
      ...listenArgs,
      '--squash',
      'none',
      ...tls,
    ],
    logFile: join(folder, 'log'),
    isReady: (log) => log.includes(`${port}`),
    signal,
  });
  const base64 = (text: Buffer): string => text.toString('base64');
  return {
    secretName,
    spec: {
      uri: `nfs://${addresses.controlPlane}/export`,
      options: { port: `${port}`, mountport: `${port}`, tls: `/etc/stowage/secrets/${secretName}` },
    },
    secret: (namespace) => ({
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: secretName, namespace },
      data: {
        'ca.crt': base64(serverCredential.cert),
        'tls.crt': base64(clientCredential.cert),
        'tls.key': base64(clientCredential.key),
      },
    }),
    keyFragment: clientCredential.key.toString().split('\n')[1]?.slice(0, 40) ?? '',
    contentsOf: async (name) => {
      const found: string[] = [];
      for (const volume of await readdir(exported))
        await readFile(join(exported, volume, name), 'utf8').then(
          (text) => found.push(text),
          () => undefined,
        );
      return found;
    },
    [Symbol.asyncDispose]: () => daemon.stop(),
  };
}
