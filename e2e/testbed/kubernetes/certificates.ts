import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Run } from '../component.ts';

/** Who somebody is in the cluster, and under which names and addresses it answers. */
export interface Identity {
  readonly user: string;
  readonly group?: string;
  /** As openssl has them: `IP:10.0.0.1`, `DNS:localhost`. */
  readonly names?: readonly string[];
}

/** The cluster's own certificate authority. Nothing of it is of use when the cluster has ended. */
export interface Authority {
  readonly certificate: string;
  /** Where the certificate of that name and its key are, or will be once it is issued. */
  files(name: string): Issued;
  /** Gives the files of a certificate and its key. */
  issue(name: string, identity: Identity): Promise<Issued>;
  /** A file with which the named one, whose certificate is issued, speaks to the API server. */
  kubeconfig(name: string, server: string): Promise<string>;
}

export interface Issued {
  readonly certificate: string;
  readonly key: string;
}

const days = '3';
const elliptic = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-noenc'];

/** The folder is there, and only root reads it. */
export async function makeAuthority(folder: string, run: Run): Promise<Authority> {
  const files = (name: string): Issued => ({
    certificate: join(folder, `${name}.crt`),
    key: join(folder, `${name}.key`),
  });
  const ca = files('ca');
  const request = (at: Issued, subject: string, ...more: readonly string[]): Promise<string> => {
    const named = ['-subj', subject, '-days', days, '-keyout', at.key, '-out', at.certificate];
    return run('openssl', ['req', '-x509', ...elliptic, ...named, ...more]);
  };
  await request(ca, '/CN=stowage-testbed');
  return {
    certificate: ca.certificate,
    files,
    issue: async (name, { user, group, names = [] }) => {
      const at = files(name);
      const extensions = ['basicConstraints=CA:FALSE', 'extendedKeyUsage=clientAuth,serverAuth'];
      if (names.length > 0) extensions.push(`subjectAltName=${names.join(',')}`);
      const signed = ['-CA', ca.certificate, '-CAkey', ca.key, ...extensions.flatMap((line) => ['-addext', line])];
      await request(at, `${group === undefined ? '' : `/O=${group}`}/CN=${user}`, ...signed);
      return at;
    },
    kubeconfig: async (name, server) => {
      const at = files(name);
      const file = join(folder, `${name}.kubeconfig`);
      const config = {
        apiVersion: 'v1',
        kind: 'Config',
        clusters: [{ name: 'testbed', cluster: { server, 'certificate-authority': ca.certificate } }],
        users: [{ name, user: { 'client-certificate': at.certificate, 'client-key': at.key } }],
        contexts: [{ name: 'testbed', context: { cluster: 'testbed', user: name } }],
        'current-context': 'testbed',
      };
      await writeFile(file, JSON.stringify(config), { mode: 0o600 });
      return file;
    },
  };
}
