import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A self-signed certificate. Needs openssl. */
export function certificate(name: string, address = '127.0.0.1'): { readonly key: Buffer; readonly cert: Buffer } {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-tls-'));
  try {
    const [key, cert] = [join(folder, 'key'), join(folder, 'cert')];
    const subject = ['-subj', `/CN=${name}`, '-addext', `subjectAltName=IP:${address}`];
    const how = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    execFileSync('openssl', [...how, '-keyout', key, '-out', cert, ...subject], { stdio: 'pipe' });
    return { key: readFileSync(key), cert: readFileSync(cert) };
  } finally {
    rmSync(folder, { recursive: true });
  }
}
