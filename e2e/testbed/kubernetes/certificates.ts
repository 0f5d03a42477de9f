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
  files(name: string): CertificateFiles;
  /** Issues a certificate. Returns the paths of the certificate and key. */
  issue(name: string, identity: Identity): Promise<CertificateFiles>;
  /** Writes a kubeconfig for the named user, whose certificate is already issued. */
  kubeconfig(name: string, server: string): Promise<string>;
}

export interface CertificateFiles {
  readonly certificate: string;
  readonly key: string;
}

const validDays = '3';
const keyOptions = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-noenc'];

/** Creates a certificate authority in an existing folder that only root can read. */
export async function makeAuthority(folder: string, run: Run): Promise<Authority> {
  const files = (name: string): CertificateFiles => ({
    certificate: join(folder, `${name}.crt`),
    key: join(folder, `${name}.key`),
  });
  const ca = files('ca');
  const createCertificate = (paths: CertificateFiles, subject: string, ...more: readonly string[]): Promise<string> => {
    const subjectOptions = ['-subj', subject, '-days', validDays, '-keyout', paths.key, '-out', paths.certificate];
    return run('openssl', ['req', '-x509', ...keyOptions, ...subjectOptions, ...more]);
  };
  await createCertificate(ca, '/CN=stowage-testbed');
  return {
    certificate: ca.certificate,
    files,
    issue: async (name, { user, group, names = [] }) => {
      const paths = files(name);
      const extensions = ['basicConstraints=CA:FALSE', 'extendedKeyUsage=clientAuth,serverAuth'];
      if (names.length > 0) extensions.push(`subjectAltName=${names.join(',')}`);
      const signingOptions = [
        '-CA',
        ca.certificate,
        '-CAkey',
        ca.key,
        ...extensions.flatMap((line) => ['-addext', line]),
      ];
      await createCertificate(paths, `${group === undefined ? '' : `/O=${group}`}/CN=${user}`, ...signingOptions);
      return paths;
    },
    kubeconfig: async (name, server) => {
      const paths = files(name);
      const file = join(folder, `${name}.kubeconfig`);
      const config = {
        apiVersion: 'v1',
        kind: 'Config',
        clusters: [{ name: 'testbed', cluster: { server, 'certificate-authority': ca.certificate } }],
        users: [{ name, user: { 'client-certificate': paths.certificate, 'client-key': paths.key } }],
        contexts: [{ name: 'testbed', context: { cluster: 'testbed', user: name } }],
        'current-context': 'testbed',
      };
      await writeFile(file, JSON.stringify(config), { mode: 0o600 });
      return file;
    },
  };
}
