import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { notes, rendered } from './manifests-helm.ts';

const open = 'every pod that can connect to the embedded NFS server can read and write all of its volumes';
const server = { 'embeddedNFS.enabled': true };
const insecure = { 'embeddedNFS.insecure': true };
const networks = { 'embeddedNFS.networks': ['10.10.0.0/16'] };
const tls = { 'embeddedNFS.tls.enabled': true };
const noPolicy = { 'networkPolicy.enabled': false };
const certificates = 'have the chart make certificates: --set embeddedNFS.tls.enabled=true';
const reach = 'every pod of the cluster could read and write all volumes of the embedded NFS server';
const accept = 'where something else keeps others out, or for a trial, accept it: --set embeddedNFS.insecure=true';

describe.skipIf(lacks('helm'))('the notes of an installation, rendered by Helm,', () => {
  test('report an open embedded NFS server if the values accept it', async () => {
    expect(await notes()).not.toContain(open);
    expect(await notes({ ...server, ...insecure })).toContain(open);
    expect(await notes({ ...server, ...insecure, ...noPolicy })).toContain(open);
    expect(await notes({ ...server, ...networks })).not.toContain(open);
    expect(await notes({ ...server, ...tls })).not.toContain(open);
  });

  test.each([
    [
      'without networks',
      {},
      `embeddedNFS.networks is empty: ${reach}. Have the chart make certificates: --set embeddedNFS.tls.enabled=true; or name the networks of your nodes: --set 'embeddedNFS.networks={10.10.0.0/16}'; or, ${accept}`,
    ],
    [
      'for every address',
      { 'embeddedNFS.networks': ['10.10.0.0/16', '::/0'] },
      `embeddedNFS.networks has ::/0, which is every address: ${reach}. Name only the networks of your nodes, or ${certificates}; or, ${accept}`,
    ],
    [
      'for networks that no policy enforces',
      { ...networks, ...noPolicy },
      `embeddedNFS.networks is enforced by a NetworkPolicy, and networkPolicy.enabled is false: ${reach}. Say --set networkPolicy.enabled=true, or, instead of networks, ${certificates}; or, ${accept}`,
    ],
  ])(
    'refuse an embedded NFS server %s unless the values accept it, or clients need certificates',
    async (_, values, message) => {
      await expect(rendered({ ...server, ...values })).rejects.toThrow(message);
      for (const accepted of [insecure, { ...tls, 'embeddedNFS.networks': [] }])
        expect(await rendered({ ...server, ...values, ...accepted })).toContain('name: stowage-nfs');
      // The command installs no embedded NFS server.
      expect(await rendered(values)).not.toContain('name: stowage-nfs');
    },
  );

  test('list the classes, and the stores without a class', async () => {
    const stores = [
      { name: 'silver', uri: 'nfs://filer/silver' },
      { name: 'gold', uri: 'nfs://filer/gold', storageClass: { name: 'best' } },
    ];
    const text = await notes({ stores });
    expect(text.split('\n').filter((line) => line.includes("store '"))).toEqual([
      "Claims of the class 'local' become volumes of the store 'local' (local:///var/lib/stowage/stores/local).",
      "The store 'silver' (nfs://filer/silver) has no class: write one that names it, or give it storageClass: {}.",
      "Claims of the class 'best' become volumes of the store 'gold' (nfs://filer/gold).",
    ]);
  });
});
