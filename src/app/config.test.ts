import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { type FileConfig, parseConfig, readConfig } from './config.ts';

const kinds = new Map([
  ['local', createLocalStoreKind()],
  ['nfs', createNfsStoreKind()],
]);
const parse = (text: string): FileConfig => parseConfig('stowage.yaml', text, kinds);

function complaint(text: string): { message: string; action: string } {
  try {
    parse(text);
  } catch (thrown) {
    if (thrown instanceof StowageError) return { message: thrown.message, action: thrown.action };
    throw thrown;
  }
  throw new Error('it was accepted');
}

describe('a valid file', () => {
  test('may give a store as a URI, or as a map whose keys form the query', () => {
    const { stores, defaultStore, listen } = parse(`
version: 1
default: fast
listen: 127.0.0.1:9000
stores:
  plain: local:///srv/data
  fast:
    uri: local:///srv/fast?layout=image
    onDelete: archive
    retention: 3d
    maxBytes: 10G
    maxVolumes: 5
    readOnly: false
    mode: 0750
clients:
  loop: builtin
`);
    expect(stores.map((store) => store.uri)).toEqual([
      'local:///srv/data',
      'local:///srv/fast?layout=image&onDelete=archive&retention=3d&maxBytes=10G&maxVolumes=5&readOnly=false&mode=0750',
    ]);
    expect(stores[1]).toMatchObject({
      name: 'fast',
      origin: 'file',
      policy: { onDelete: 'archive', retention: 3 * 86_400_000, maxBytes: 10n << 30n, maxVolumes: 5, readOnly: false },
      options: { layout: 'image', mode: '0750' },
    });
    expect({ defaultStore, listen }).toEqual({ defaultStore: 'fast', listen: '127.0.0.1:9000' });
  });

  test('may name the sockets of container engines and the plugin folder', () => {
    const { plugins, engines } = parse(
      'plugins: /run/docker/plugins\nengines:\n  docker: /run/docker.sock\n  podman: none\n',
    );
    expect(plugins).toBe('/run/docker/plugins');
    expect(engines).toEqual({ docker: '/run/docker.sock', podman: 'none' });
    expect(parse('plugins: none\nengines:\n')).toMatchObject({ plugins: 'none', engines: {} });
  });

  test.each([
    [
      'plugins: plugins',
      "stowage.yaml:1:10: 'plugins' is not an absolute path",
      'Use plugins: /run/…, or plugins: none',
    ],
    ['plugins: 5', "stowage.yaml:1:10: 'plugins' is not a string", 'Use plugins: value'],
    ['engines: /run/docker.sock', "stowage.yaml:1:10: 'engines' is not a map", 'Indent the keys under engines:'],
    [
      'engines:\n  lxc: /s',
      "stowage.yaml:2:3: 'lxc' is not a supported container engine",
      'Use one of: docker, podman',
    ],
    [
      'engines:\n  docker: tcp://h',
      "stowage.yaml:2:11: 'tcp://h' is not an absolute path",
      'Use docker: /run/…, or docker: none',
    ],
  ])('%j is refused', (text, message, action) => {
    expect(complaint(text)).toEqual({ message, action });
  });

  test.each(['', '\n', '# nothing but a comment\n', '---\n', 'version: 1\n', 'stores:\n', 'stores: {}\n'])(
    '%j defines no stores',
    (text) => {
      expect(parse(text)).toEqual({
        stores: [],
        defaultStore: undefined,
        listen: undefined,
        plugins: undefined,
        engines: {},
      });
    },
  );

  test('may give a bare port, or none', () => {
    expect(parse('listen: 7000').listen).toBe('7000');
    expect(parse('listen: none').listen).toBe('none');
  });
});

describe('an invalid file is reported with line and column:', () => {
  test.each([
    ['stores:\n  a: [', '2:7: Flow sequence in block collection must be sufficiently indented and end with a ]'],
    ['a: 1\nb: "x', '2:6: Missing closing "quote'],
    ['stores:\n\ta: x', '2:1: Tabs are not allowed as indentation'],
    ['stores:\n  a: local:///x\n  a: local:///y', '3:3: Map keys must be unique'],
    ['- a\n- b', '1:1: expected a map'],
    ['just text', '1:1: expected a map'],
    ['version: 1\nstorez: {}', "2:1: unknown key 'storez'"],
    ['version: 2', '1:10: version 2 is not supported'],
    ['version: "1"', '1:10: version 1 is not supported'],
    ['stores: text', "1:9: 'stores' is not a map"],
    ['stores:\n  - a', "2:3: 'stores' is not a map"],
    ['stores:\n  a:', "2:3: store 'a' has no URI"],
    ['stores:\n  a: 5', "2:3: store 'a' has no URI"],
    ['stores:\n  a:\n    layout: image', "2:3: store 'a' has no uri"],
    ['stores:\n  a:\n    uri: nonsense', "3:10: 'nonsense' is not a URI"],
    ['stores:\n  a:\n    uri: [1]', "3:10: 'uri' is not a string"],
    ['stores:\n  ok: local:///x\n  a: nonsense', "3:3: 'nonsense' is not a store URI"],
    ['stores:\n  a: ftp://x/y', '2:3: no store is known for ftp://'],
    [
      'stores:\n  a b: local:///x',
      "2:3: 'a b' cannot be a store name: only the letters A-Z a-z, digits, and _ . - may be used",
    ],
    [
      'stores:\n  x.meta: local:///x',
      "2:3: 'x.meta' cannot be a store name: names that end in '.meta' are reserved for Stowage's own records",
    ],
    ['stores:\n  a:\n    uri: local:///x\n    colour: red', "4:5: store 'a' has the unknown option 'colour'"],
    [
      'stores:\n  a:\n    uri: local:///x\n    maxVolumes: many',
      "4:5: store 'a': 'many' is not a value for maxVolumes",
    ],
    [
      'stores:\n  a:\n    uri: local:///x\n    onDelete: perhaps',
      "4:5: store 'a': 'perhaps' is not a value for onDelete",
    ],
    ['stores:\n  a:\n    uri: local:///x\n    mode: rwx', "4:5: 'rwx' is not a value for the option mode"],
    ['stores:\n  a:\n    uri: nfs://h/x\n    timeout: soon', "4:5: 'soon' is not a value for the option timeout"],
    ['stores:\n  a: nfs://h', "2:3: 'nfs://h' is not the URI of an NFS store: the path is missing"],
    ['stores:\n  a:\n    uri: local:///x\n    layout: {}', "4:5: 'layout' is not a scalar"],
    ['stores:\n  a:\n    uri: local:///x?layout=image\n    layout: image', "4:5: 'layout' is already set in the URI"],
    ['stores:\n  a: local://me:secret@host/x', '2:3: a store URI must not contain a user or password'],
    ['default: b\nstores:\n  a: local:///x', "1:10: the default store 'b' is not defined"],
    ['default: [a]', "1:10: 'default' is not a string"],
    ['listen: somewhere:else', "1:9: 'somewhere:else' is not a valid listen address"],
    ['listen: 99999', "1:9: '99999' is not a valid listen address"],
    ['listen: [1]', "1:9: 'listen' is not a string"],
    ['clients:\n  nfs: builtin', "2:3: there is no client for 'nfs'"],
    ['clients:\n  loop: mine', "2:3: 'loop' has only the built-in client"],
  ])('%j', (text, expected) => {
    const { message, action } = complaint(text);
    expect(message).toContain(`stowage.yaml:${expected}`);
    expect(action).not.toBe('');
    expect(message).not.toContain('secret');
  });

  test('refuses an alias bomb', () => {
    const bomb = [
      'a: &a [x,x,x,x,x,x,x,x,x]',
      ...'bcdefghi'.split('').map((c, i) => `${c}: &${c} [${`*${'abcdefghi'[i]},`.repeat(9)}]`),
    ];
    expect(complaint(bomb.join('\n')).message).toContain("unknown key 'a'");
  });

  test('refuses a file that is too large', () => {
    expect(complaint(`# ${'x'.repeat(1 << 20)}`).message).toBe('stowage.yaml:1:1: the configuration file is too large');
  });
});

test('a missing file counts as none; an unreadable one is an error', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-config-'));
  const path = join(folder.path, 'stowage.yaml');
  expect(await readConfig(path, kinds)).toBeUndefined();
  await writeFile(path, 'version: 1');
  expect(await readConfig(path, kinds)).toMatchObject({ stores: [] });
  await expect(readConfig(folder.path, kinds)).rejects.toMatchObject({
    code: 'invalid',
    reason: 'config-unreadable',
    message: `cannot read ${folder.path}`,
  });
});
