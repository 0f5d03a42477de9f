import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Run } from '../component.ts';

/** A user or server in the cluster, with the names and addresses of its certificate. */
export interface Identity {
  readonly user: string;
  readonly group?: string;
  /** In the format of openssl: `IP:10.0.0.1`, `DNS:localhost`. */
  readonly names?: readonly string[];
}

/** The certificate authority of a cluster. It is worthless after the end of the cluster. */
export interface Authority {
  readonly certificate: string;
  /** The paths of the certificate and key of that name, which need not exist. */
  files(name: string): Issued;
  /** Issues a certificate. Returns the paths of the certificate and key. */
  issue(name: string, identity: Identity): Promise<Issued>;
  /** Writes a kubeconfig for the named user, whose certificate is already issued. */
  kubeconfig(name: string, server: string): Promise<string>;
}

export interface Issued {
  readonly certificate: string;
  readonly key: string;
}

const days = '3';
const elliptic = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-noenc'];

/** Creates a certificate authority in an existing folder that only root can read. */
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
