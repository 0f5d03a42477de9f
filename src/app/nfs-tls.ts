import { createPrivateKey, X509Certificate } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { createSecureContext, type TlsOptions } from 'node:tls';
import { errnoOf } from '#base/errno.ts';
import type { NfsServeOptions } from '#cli/io.ts';
import { StowageError } from '#core/errors.ts';

type TlsFlags = Pick<NfsServeOptions, 'tlsCert' | 'tlsKey' | 'tlsCa' | 'tlsOptional'> &
  Partial<Pick<NfsServeOptions, 'tlsConfine'>>;

export interface ServedTls {
  readonly options: TlsOptions;
  readonly required: boolean;
  readonly notes: readonly string[];
}

/** Undefined: TLS is not configured. Validates everything now, so that errors do not surface with the first client. */
export async function readTls(asked: TlsFlags, now = Date.now()): Promise<ServedTls | undefined> {
  const { tlsCert, tlsKey, tlsCa, tlsConfine = [], tlsOptional } = asked;
  if (tlsConfine.length > 0 && tlsCa === undefined) throw unknownCallers();
  if (tlsCert === undefined && tlsKey === undefined) {
    if (tlsCa !== undefined || tlsOptional) throw incomplete();
    return undefined;
  }
  if (tlsCert === undefined || tlsKey === undefined) throw incomplete();
  if (tlsCa !== undefined && tlsOptional) throw contradictory();
  const [cert, key, ca] = await Promise.all([tlsCert, tlsKey, tlsCa].map(readPem));
  const certificates = certificatesIn(tlsCert, cert);
  if (ca !== undefined) certificatesIn(tlsCa ?? '', ca);
  const [own] = certificates;
  if (own === undefined || !isKeyOf(own, tlsKey, key)) throw mismatch(tlsCert, tlsKey);
  const options: TlsOptions = {
    cert,
    key,
    minVersion: 'TLSv1.3',
    ...(ca === undefined ? {} : { ca, requestCert: true, rejectUnauthorized: true }),
  };
  try {
    createSecureContext(options);
  } catch (cause) {
    throw wrongPem(tlsCert, cause);
  }
  return {
    options,
    required: !tlsOptional,
    notes: [...datesOf(own, tlsCert, now), ...(await readabilityNotes(tlsKey))],
  };
}

async function readPem(file: string | undefined): Promise<Buffer | undefined> {
  if (file === undefined) return undefined;
  try {
    return await readFile(file);
  } catch (cause) {
    const why = errnoOf(cause) ?? 'unknown';
    const isDenied = why === 'EACCES';
    throw new StowageError(`cannot read ${file} (${why})`, {
      code: isDenied ? 'denied' : 'invalid',
      reason: 'nfs-tls-file',
      action: 'Specify a PEM file that the user of the server can read.',
      cause,
    });
  }
}

/** The first is the server's own certificate. */
function certificatesIn(file: string, pem: Buffer | undefined): X509Certificate[] {
  const blocks = pem?.toString('latin1').match(/-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g) ?? [];
  try {
    if (blocks.length === 0) throw new Error('it contains no certificate in PEM format');
    return blocks.map((block) => new X509Certificate(block));
  } catch (cause) {
    throw wrongPem(file, cause);
  }
}

function isKeyOf(certificate: X509Certificate, file: string, key: Buffer | undefined): boolean {
  try {
    return certificate.checkPrivateKey(createPrivateKey(key ?? ''));
  } catch (cause) {
    throw wrongPem(file, cause);
  }
}

function datesOf(certificate: X509Certificate, file: string, now: number): string[] {
  const [from, to] = [certificate.validFromDate, certificate.validToDate];
  if (to.getTime() < now) return [`the certificate in ${file} expired on ${to.toISOString()}; clients will reject it`];
  if (from.getTime() > now) return [`the certificate in ${file} is not valid before ${from.toISOString()}`];
  return [];
}

async function readabilityNotes(file: string): Promise<string[]> {
  const { mode } = await stat(file);
  return (mode & 0o004) === 0 ? [] : [`${file} is readable by every user; run: chmod 600 ${file}`];
}

function unknownCallers(): StowageError {
  return new StowageError('--tls-confine requires --tls-ca: only then clients send certificates', {
    code: 'invalid',
    reason: 'nfs-tls-unknown-callers',
    action: 'Also pass --tls-ca FILE, the CA that signed the client certificates.',
  });
}

function incomplete(): StowageError {
  return new StowageError('TLS requires a certificate and its key', {
    code: 'invalid',
    reason: 'nfs-tls-incomplete',
    action: 'Pass both --tls-cert FILE and --tls-key FILE',
  });
}

function contradictory(): StowageError {
  return new StowageError(
    '--tls-optional and --tls-ca are mutually exclusive: a client without TLS has no certificate',
    {
      code: 'invalid',
      reason: 'nfs-tls-contradictory',
      action: 'Omit one of them.',
    },
  );
}

function mismatch(cert: string, key: string): StowageError {
  return new StowageError(`the key in ${key} does not belong to the certificate in ${cert}`, {
    code: 'invalid',
    reason: 'nfs-tls-mismatch',
    action: "Specify a matching certificate and key; the first certificate in the file must be the server's own.",
  });
}

function wrongPem(file: string, cause: unknown): StowageError {
  const why = cause instanceof Error ? cause.message : String(cause);
  return new StowageError(`${file} cannot be used for TLS: ${why}`, {
    code: 'invalid',
    reason: 'nfs-tls-invalid',
    action: 'Specify a certificate or key in PEM format; the key must not have a passphrase.',
    cause,
  });
}
