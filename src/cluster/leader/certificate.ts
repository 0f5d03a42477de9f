import { createPrivateKey, generateKeyPairSync, randomBytes, sign, X509Certificate } from 'node:crypto';
import { createSecureContext } from 'node:tls';
import {
  bitString,
  derTrue,
  encodeTime,
  explicitTag,
  implicitTag,
  integer,
  objectId,
  octetString,
  sequence,
  setOf,
  utf8String,
} from './der.ts';

/** A certificate and its key, in PEM. */
export interface Credential {
  /** The server's certificate, then its chain. */
  readonly cert: string;
  readonly key: string;
}

const ecdsaWithSha256 = sequence(objectId('1.2.840.10045.4.3.2'));
const commonName = objectId('2.5.4.3');
const extensionIds = {
  subjectAltName: objectId('2.5.29.17'),
  basicConstraints: objectId('2.5.29.19'),
  keyUsage: objectId('2.5.29.15'),
  extendedKeyUsage: objectId('2.5.29.37'),
} as const;
const serverAuthentication = objectId('1.3.6.1.5.5.7.3.1');
const dnsNameTag = 2;
/** A BIT STRING with only the bit digitalSignature (and 7 unused bits). */
const signatureOnly = Buffer.from([0x03, 0x02, 0x07, 0x80]);

/** How far notBefore lies in the past, so that machines with a slow clock accept the certificate. */
const backdateMs = 24 * 3_600_000;
const lifetimeMs = 365 * 24 * 3_600_000;

/**
 * Creates a self-signed certificate with ECDSA on P-256. It is no CA: its key can impersonate only this server. Node can read certificates
 * but not create them, and the part of X.509 needed here is small.
 */
export function createCredential(names: readonly [string, ...string[]], now: number): Credential {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const name = sequence(setOf(sequence(commonName, utf8String(names[0]))));
  const tbsCertificate = sequence(
    explicitTag(0, integer(Buffer.from([2]))),
    serialNumber(),
    ecdsaWithSha256,
    name,
    sequence(encodeTime(now - backdateMs), encodeTime(now + lifetimeMs)),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    explicitTag(3, extensions(names)),
  );
  const signature = sign('sha256', tbsCertificate, privateKey);
  const cert = pem('CERTIFICATE', sequence(tbsCertificate, ecdsaWithSha256, bitString(signature)));
  return { cert, key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
}

/** RFC 5280, section 4.1.2.2: positive, and not zero. */
function serialNumber(): Buffer {
  const bytes = randomBytes(16);
  bytes[0] = ((bytes[0] ?? 0) & 0x7f) | 0x40;
  return integer(bytes);
}

function extensions(names: readonly string[]): Buffer {
  const extension = (id: Buffer, content: Buffer): Buffer => sequence(id, octetString(content));
  const critical = (id: Buffer, content: Buffer): Buffer => sequence(id, derTrue, octetString(content));
  return sequence(
    extension(
      extensionIds.subjectAltName,
      sequence(...names.map((name) => implicitTag(dnsNameTag, Buffer.from(name, 'ascii')))),
    ),
    critical(extensionIds.basicConstraints, sequence()),
    critical(extensionIds.keyUsage, signatureOnly),
    extension(extensionIds.extendedKeyUsage, sequence(serverAuthentication)),
  );
}

function pem(label: string, der: Buffer): string {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return [`-----BEGIN ${label}-----`, ...lines, `-----END ${label}-----`, ''].join('\n');
}

/** A credential that was read from a Secret. */
export interface StoredCredential extends Credential {
  /** When two thirds of its lifetime are over. */
  readonly renewAt: number;
  readonly expiresAt: number;
  readonly isFor: (name: string) => boolean;
}

/** Throws if the certificate or the key is invalid. */
export function readCredential(cert: string, key: string): StoredCredential {
  const x509 = new X509Certificate(cert);
  if (!x509.checkPrivateKey(createPrivateKey(key))) throw new Error('the key does not belong to the certificate');
  // Finds other reasons for which TLS would refuse the certificate or the key, such as a key that is too short.
  createSecureContext({ cert, key });
  const [notBefore, notAfter] = [x509.validFromDate.getTime(), x509.validToDate.getTime()];
  const isFor = (name: string): boolean => x509.checkHost(name) !== undefined;
  return { cert, key, expiresAt: notAfter, renewAt: notBefore + ((notAfter - notBefore) * 2) / 3, isFor };
}
