import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { notes, rendered } from './manifests-helm.ts';

const open = "whoever reaches the cluster's network reaches the embedded NFS server";
const server = { 'embeddedNFS.enabled': true };
const networks = { 'embeddedNFS.networks': ['10.10.0.0/16'] };
const noPolicy = { 'networkPolicy.enabled': false };

describe.skipIf(needs('helm'))('what is said of an installation, by Helm', () => {
  test('that the embedded NFS server is open, unless a policy says to whom', async () => {
    expect(await notes()).not.toContain(open);
    expect(await notes(server)).toContain(open);
    expect(await notes({ ...server, ...noPolicy })).toContain(open);
    expect(await notes({ ...server, ...networks })).not.toContain(open);
  });

  test('networks that nothing holds anybody to are refused, with what to do', async () => {
    await expect(rendered({ ...server, ...networks, ...noPolicy })).rejects.toThrow(
      /embeddedNFS\.networks is kept to by a NetworkPolicy.* Set networkPolicy\.enabled=true; or/,
    );
    // Of a server that is not there nothing is said.
    expect(await rendered({ ...networks, ...noPolicy })).not.toContain('NetworkPolicy');
  });

  test('the classes that there are, and which stores have none', async () => {
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
