import { X509Certificate } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { lacks } from '#testbed/lacks.ts';
import { notes, rendered } from './manifests-helm.ts';

interface RenderedObject {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly data?: Readonly<Record<string, string>>;
  readonly spec?: {
    readonly options?: Readonly<Record<string, string>>;
    readonly template?: {
      readonly spec: {
        readonly containers: readonly { readonly args: readonly string[] }[];
        readonly volumes: readonly {
          readonly secret?: { readonly secretName: string; readonly items: readonly { readonly key: string }[] };
        }[];
      };
    };
  };
}

async function renderObjects(values: Readonly<Record<string, unknown>> = {}): Promise<readonly RenderedObject[]> {
  const all = { 'embeddedNFS.enabled': true, 'embeddedNFS.tls.enabled': true, ...values };
  return parseAllDocuments(await rendered(all)).map((document) => document.toJS() as RenderedObject);
}

const find = (things: readonly RenderedObject[], kind: string, name: string): RenderedObject | undefined =>
  things.find((thing) => thing.kind === kind && thing.metadata.name === name);

function certificatesIn(things: readonly RenderedObject[]): (name: string) => X509Certificate {
  const { data } = find(things, 'Secret', 'stowage-nfs-tls') ?? expect.fail('there is no Secret');
  return (name) => new X509Certificate(Buffer.from(data?.[`${name}.crt`] ?? '', 'base64'));
}

/** The keys of the Secret that the pods of an object mount. */
const keysOf = (
  things: readonly RenderedObject[],
  kind: string,
  name: string,
  secret = 'stowage-nfs-tls',
): readonly string[] =>
  (find(things, kind, name)?.spec?.template?.spec.volumes ?? [])
    .filter((volume) => volume.secret?.secretName === secret)
    .flatMap((volume) => volume.secret?.items.map(({ key }) => key) ?? [])
    .sort();

const argsOf = (things: readonly RenderedObject[]): readonly string[] =>
  find(things, 'StatefulSet', 'stowage-nfs')?.spec?.template?.spec.containers[0]?.args ?? [];

describe.skipIf(lacks('helm'))('the certificates of the embedded NFS server, rendered by Helm,', () => {
  test('have one authority and three certificates: for the server, for Stowage, and for mounts, which the server restricts', async () => {
    const things = await renderObjects();
    const of = certificatesIn(things);
    for (const name of ['server', 'client', 'mount']) {
      expect(of(name).verify(of('ca').publicKey), name).toBe(true);
      expect(of(name).subject).toBe(`CN=stowage-${name}`);
      expect(of(name).validToDate.getTime() - Date.now()).toBeGreaterThan(9 * 365 * 86_400_000);
    }
    expect(of('server').checkHost('stowage-nfs.default.svc')).toBe('stowage-nfs.default.svc');
    expect(argsOf(things)).toEqual(
      expect.arrayContaining(['--tls-cert=/tls/server.pem', '--tls-ca=/tls/ca.pem', '--tls-confine=stowage-mount']),
    );
    expect(find(things, 'Store', 'network')?.spec?.options?.['tls']).toBe('/etc/stowage/embedded-nfs');
  });

  test('are mounted in the pods that need them, and no pod gets the key of the authority', async () => {
    const things = await renderObjects();
    const client = ['ca.crt', 'client.crt', 'client.key', 'mount.crt', 'mount.key'];
    expect(keysOf(things, 'DaemonSet', 'stowage-agent')).toEqual(client);
    expect(keysOf(things, 'Deployment', 'stowage-controller')).toEqual(client);
    expect(keysOf(things, 'StatefulSet', 'stowage-nfs')).toEqual(['ca.crt', 'mount.crt', 'server.crt', 'server.key']);
    expect(keysOf(things, 'DaemonSet', 'stowage-keeper')).toEqual([]);
  });

  test('are still mounted in agents and the controller when the embedded server is disabled', async () => {
    const things = await renderObjects({ 'embeddedNFS.enabled': false });
    expect(find(things, 'StatefulSet', 'stowage-nfs')).toBeUndefined();
    expect(keysOf(things, 'DaemonSet', 'stowage-agent')).toContain('client.key');
    expect(keysOf(things, 'Deployment', 'stowage-controller')).toContain('client.key');
  });

  test.each(['10.96.0.49', 'fd00::49'])('name the address of the server if it has a fixed one: %s', async (ip) => {
    const of = certificatesIn(await renderObjects({ 'embeddedNFS.clusterIP': ip }));
    expect(of('server').checkIP(ip)).toBe(ip);
  });

  test('are not required by stored values of an older chart without TLS settings', async () => {
    const older = { 'embeddedNFS.tls': null, 'embeddedNFS.insecure': true };
    const things = parseAllDocuments(await rendered({ 'embeddedNFS.enabled': true, ...older })).map((one) =>
      one.toJS(),
    );
    expect(argsOf(things).filter((arg) => arg.includes('tls'))).toEqual([]);
    expect(find(things, 'Store', 'network')?.spec?.options).not.toHaveProperty('tls');
    expect(await notes({ 'embeddedNFS.enabled': true, ...older })).toContain('embeddedNFS');
    await expect(rendered({ 'embeddedNFS.enabled': true, 'embeddedNFS.tls': null })).rejects.toThrow(
      'embeddedNFS.networks is empty',
    );
  });

  test('do not replace the warning that the networks of nodes are not enforced', async () => {
    const unenforced = { 'embeddedNFS.networks': ['10.10.0.0/16'], 'networkPolicy.enabled': false };
    await expect(renderObjects(unenforced)).rejects.toThrow(
      'a NetworkPolicy enforces embeddedNFS.networks, and networkPolicy.enabled is false',
    );
    await renderObjects({ 'networkPolicy.enabled': false });
  });

  test('are not created if the values name a Secret, or disable TLS', async () => {
    const given = await renderObjects({ 'embeddedNFS.tls.secretName': 'mine' });
    expect(find(given, 'Secret', 'stowage-nfs-tls')).toBeUndefined();
    expect(keysOf(given, 'DaemonSet', 'stowage-agent', 'mine')).toContain('mount.key');
    expect(keysOf(given, 'StatefulSet', 'stowage-nfs', 'mine')).toContain('server.key');
    const plain = await renderObjects({ 'embeddedNFS.tls.enabled': false, 'embeddedNFS.insecure': true });
    expect(find(plain, 'Secret', 'stowage-nfs-tls')).toBeUndefined();
    expect(argsOf(plain).filter((arg) => arg.includes('tls'))).toEqual([]);
    expect(find(plain, 'Store', 'network')?.spec?.options).not.toHaveProperty('tls');
  });
});
