/** A page of volumes begins after a volume of a shared store, after a volume of a node, or (without `store`) after all volumes of a node. */
export type VolumeCursor =
  | { readonly node: undefined; readonly store: string; readonly name: string }
  | { readonly node: string; readonly store: string | undefined; readonly name: string };

/** `store/name`, `store/name/node`, or for the end of a node: two stars and its name. */
export function cursorFrom(text: string | undefined): VolumeCursor | undefined {
  const [store, name, node] = text?.split('/') ?? [];
  if (store === undefined || name === undefined) return undefined;
  if (node === undefined) return { node, store, name };
  return { node, store: store === '*' ? undefined : store, name };
}

export const cursorText = ({ node, store = '*', name }: VolumeCursor): string =>
  `${store}/${name}${node === undefined ? '' : `/${node}`}`;
