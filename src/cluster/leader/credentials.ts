import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { configMaps, secrets } from '#wire/kube/resources.ts';
import type { ConfigMap, Secret } from '#wire/kube/types.ts';
import { createWatchedObject } from '#wire/kube/watched-object.ts';
import { leaderObjectNames, serverNames } from '../names.ts';
import { type Credential, createCredential, readCredential, type StoredCredential } from './certificate.ts';
import { runReconcileLoop } from './reconcile-loop.ts';

export interface CredentialsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  /** A Secret that another program maintains. Stowage only reads it. */
  readonly secret?: string | undefined;
  /** Called with the first credential and with each new one, after its authority was published for agents. */
  readonly applyCredential: (credential: Credential) => void;
}

/** How often to check whether the certificate has to be renewed. */
const resyncMs = 6 * 3_600_000;
/** When to retry, in case the watch does not report the change. */
const retryMs = 5_000;

const labels = { 'app.kubernetes.io/managed-by': 'stowage.dev' };
const textOf = (secret: Secret | undefined, key: string): string =>
  Buffer.from(secret?.data?.[key] ?? '', 'base64').toString('utf8');

/** Maintains the server's certificate in a Secret, and its authority in a ConfigMap, until the signal aborts. */
export async function maintainCredentials(options: CredentialsOptions, scope: Scope): Promise<void> {
  const { client, clock, namespace, secret: givenSecretName, applyCredential } = options;
  const isOwn = givenSecretName === undefined;
  const names = serverNames(namespace);
  const watchOptions = { client, clock, namespace };
  const secret = createWatchedObject({
    ...watchOptions,
    resource: secrets,
    name: givenSecretName ?? leaderObjectNames.secret,
  });
  const authority = createWatchedObject({ ...watchOptions, resource: configMaps, name: leaderObjectNames.authority });
  let lastApplied = '';

  function readUsable(found: Secret | undefined): StoredCredential {
    const credential = readCredential(textOf(found, 'tls.crt'), textOf(found, 'tls.key'));
    if (!credential.isFor(names[0])) throw new Error(`the certificate is not for ${names[0]}`);
    if (credential.expiresAt <= clock.now()) throw new Error('the certificate has expired');
    return credential;
  }

  /** Undefined if there is no usable certificate, or it has to be renewed. */
  function validCredentialIn(found: Secret | undefined, { log }: Scope): StoredCredential | undefined {
    if (found === undefined) return undefined;
    try {
      const credential = readUsable(found);
      return clock.now() < credential.renewAt ? credential : undefined;
    } catch (error) {
      log.warn('the certificate is not usable: creating a new certificate', {
        secret: leaderObjectNames.secret,
        error,
      });
      return undefined;
    }
  }

  /**
   * Several processes may try to create or replace the Secret. Optimistic locking lets only one of them succeed; the others fail, and then
   * use the certificate that it wrote.
   */
  async function ensureOwnCredential(scope: Scope): Promise<Credential> {
    const found = secret.object;
    const existing = validCredentialIn(found, scope);
    if (existing !== undefined) return existing;
    const created = createCredential(names, clock.now());
    const toBase64 = (text: string): string => Buffer.from(text, 'utf8').toString('base64');
    const data = { 'tls.crt': toBase64(created.cert), 'tls.key': toBase64(created.key) };
    const type = 'kubernetes.io/tls';
    // The type of a Secret is immutable. A Secret of another type was not created by Stowage.
    if (found !== undefined && found.type !== type)
      await client.delete(
        secrets,
        { namespace, name: leaderObjectNames.secret },
        { uid: found.metadata.uid },
        scope.signal,
      );
    if (found === undefined || found.type !== type)
      await client.create(
        secrets,
        { metadata: { namespace, name: leaderObjectNames.secret, labels }, type, data },
        scope.signal,
      );
    else await client.update(secrets, { ...found, data }, scope.signal);
    scope.log.info('created a new certificate', { secret: leaderObjectNames.secret, names });
    return created;
  }

  async function readGivenCredential(): Promise<Credential> {
    if (secret.object === undefined) throw new Error(`there is no Secret ${givenSecretName ?? ''} in ${namespace}`);
    return readUsable(secret.object);
  }

  /** The certificate that clients have to trust: the CA, if the Secret has one, otherwise the server's own. */
  const authorityOf = ({ cert }: Credential): string => {
    const signedBy = isOwn ? '' : textOf(secret.object, 'ca.crt');
    return signedBy === '' ? cert : signedBy;
  };

  async function publish(text: string, signal: AbortSignal): Promise<void> {
    const found = authority.object;
    if (found?.data?.[leaderObjectNames.authorityKey] === text) return;
    const data = { [leaderObjectNames.authorityKey]: text };
    const metadata = { namespace, name: leaderObjectNames.authority, labels };
    const object: ConfigMap = found === undefined ? { metadata, data } : { ...found, data };
    await (found === undefined ? client.create(configMaps, object, signal) : client.update(configMaps, object, signal));
  }

  async function reconcile(scope: Scope): Promise<number> {
    const credential = await (isOwn ? ensureOwnCredential(scope) : readGivenCredential()).catch(ignoreLostRace);
    if (credential === undefined) return retryMs;
    // Publish before use: an agent that does not have the new authority yet cannot connect.
    await publish(authorityOf(credential), scope.signal).catch(ignoreLostRace);
    const { cert, key } = credential;
    const text = JSON.stringify([cert, key]);
    if (text !== lastApplied) applyCredential({ cert, key });
    lastApplied = text;
    return resyncMs;
  }

  await runReconcileLoop({ objectName: 'certificate', clock, objects: [secret, authority], reconcile }, scope);
}

/** Another process wrote the object first. The watch reports that change, and triggers the next reconcile. */
function ignoreLostRace(thrown: unknown): undefined {
  if (!['AlreadyExists', 'Conflict'].includes(reasonOf(thrown))) throw thrown;
}
