import { describe, expect, test } from 'vitest';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { parseStoreConfig } from './store-uri.ts';

const kinds = new Map([['nfs', createNfsStoreKind()]]);
const parsed = (uri: string) => parseStoreConfig('silver', uri, 'api', kinds);

describe('the URI of a store', () => {
  test.each([
    'nfs://server/export?port=2049',
    'nfs://10.0.0.1,10.0.0.2/export?port=2049',
    'nfs://[fd00::1],[fd00::2]/export?port=2049',
    'nfs://[fe80::1%eth0]/export?port=2049',
  ])('can be %s', (uri) => {
    expect(parsed(uri)).toMatchObject({ uri, options: { port: '2049' } });
  });

  test.each(['nfs://me:secret@server/export', 'nfs://me@server/export', 'nfs://server,x@other/export'])(
    'cannot be %s, which contains a user or password',
    (uri) => {
      expect(() => parsed(uri)).toThrow('must not contain a user or password');
    },
  );

  test.each([
    ['', undefined],
    ['?inline=true', true],
    ['?inline=false', false],
  ])("with '%s' allows inline volumes: %s", (query, inline) => {
    expect(parsed(`nfs://server/export${query}`).policy).toMatchObject({ inline });
  });

  test.each(['inline=on', 'inline=', 'readOnly=yes'])('with ?%s is rejected', (query) => {
    expect(() => parsed(`nfs://server/export?${query}`)).toThrow(`is not a value for ${query.split('=')[0]}`);
  });
});
