/** Empty for a store of another kind, and for a URI that cannot be parsed. */
export function localPath(uri: string): string[] {
  try {
    const { protocol, pathname } = new URL(uri);
    return protocol === 'local:' ? [decodeURIComponent(pathname)] : [];
  } catch {
    return [];
  }
}
